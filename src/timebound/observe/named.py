"""Which model and version are meant by a name that workers know: the one place where metrics tell them apart."""

from __future__ import annotations

from collections.abc import Mapping

from timebound.types import ModelInfo


class Named:
    """Asked for every batch: two look-ups, nothing is kept."""

    def __init__(self, models: Mapping[str, ModelInfo]) -> None:
        self._models = models

    def __call__(self, name: str) -> tuple[str, str]:
        """The model and its version; that of a main one which is no longer served is not known, and empty."""
        base, is_beside, version = name.partition("@")
        if is_beside:
            return base, version
        info = self._models.get(name)
        return base, "" if info is None else info.version
