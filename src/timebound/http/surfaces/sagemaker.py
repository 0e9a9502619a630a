"""SageMaker's containers: our own protocol, at the paths that SageMaker asks."""

from __future__ import annotations

from timebound.http.surfaces.native import Native
from timebound.types import ModelInfo


class SageMaker(Native):
    """POST to /invocations for the only model, to /models/NAME/invoke for one of several."""

    lone_path = "/invocations"

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/models/{info.name}/invoke"] if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return []
