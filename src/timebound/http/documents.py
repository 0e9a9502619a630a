"""The API documents that are given out: each is made once for what it describes, and not on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from timebound.http.openapi import openapi
from timebound.types import ModelInfo
from timebound.version import VERSION

_MOST = 16
"""Sets of models that holders of different API keys see; of more the one that was made first is made anew."""


class Documents:
    """Made again when the catalogue has changed: a model that was loaded anew is another one, whatever its name."""

    def __init__(self, *, needs_key: bool) -> None:
        self._needs_key = needs_key
        self._made: dict[tuple[object, ...], tuple[Sequence[ModelInfo], bytes]] = {}
        self._making = asyncio.Lock()

    async def of(self, models: Sequence[ModelInfo], *, has_archives: bool) -> bytes:
        """The document of these models, as JSON."""
        which: tuple[object, ...] = (has_archives, *(info.name for info in models))
        found = self._find(which, models)
        if found is not None:
            return found
        async with self._making:  # whoever else asks meanwhile gets the same
            found = self._find(which, models)
            if found is None:
                found = await asyncio.to_thread(self._make, models, has_archives)
                self._made.pop(which, None)
                self._made[which] = models, found
                if len(self._made) > _MOST:
                    del self._made[next(iter(self._made))]
            return found

    def _find(self, which: tuple[object, ...], models: Sequence[ModelInfo]) -> bytes | None:
        known, body = self._made.get(which, ((), b""))
        return body if body and all(one is other for one, other in zip(known, models, strict=True)) else None

    def _make(self, models: Sequence[ModelInfo], has_archives: bool) -> bytes:
        document = openapi(models, VERSION, needs_key=self._needs_key, has_archives=has_archives)
        return msgspec.json.encode(document)
