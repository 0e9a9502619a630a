"""What changed on a server, as marks in its charts: models, versions, reloads, divisions, workers, losses, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from timebound.events import (
    BatchesShrunk,
    BatchLost,
    Divided,
    Events,
    Quarantined,
    Reloaded,
    ReloadFailed,
    WorkerDown,
    WorkerUp,
)
from timebound.observe.rings import Recent
from timebound.types import ModelInfo

_MOST = 256
_LONGEST = 200
"""Characters of a detail."""


class Mark(msgspec.Struct, frozen=True):
    """One change; who shows it puts it into words."""

    at: float
    """Seconds since 1970."""
    kind: str
    model: str
    detail: str


class Marks:
    """Listens to events, and looks once a second which versions are served."""

    def __init__(self, events: Events, models: Mapping[str, ModelInfo], wall: Callable[[], float]) -> None:
        self._models = models
        self._wall = wall
        self._recent: Recent[Mark] = Recent(_MOST)
        self._told = -1
        self._served: set[tuple[str, str]] = set()
        events.on(BatchLost, lambda event: self.put("batch_lost", _base(event.model), str(event.loss)))
        events.on(BatchesShrunk, lambda event: self.put("shrunk", _base(event.model), str(event.limit)))
        events.on(Quarantined, lambda event: self.put("quarantined", _base(event.model)))
        events.on(WorkerUp, lambda event: self.put("worker_up", detail=str(event.worker)))
        events.on(WorkerDown, self._worker_down)
        events.on(Reloaded, lambda event: self.put("reload", detail=", ".join(event.models)))
        events.on(ReloadFailed, lambda event: self.put("reload_failed", detail=event.why))
        events.on(Divided, self._divided)

    def put(self, kind: str, model: str = "", detail: str = "") -> None:
        """One more change, now."""
        self._recent.put(Mark(round(self._wall(), 3), kind, model, detail[:_LONGEST]))

    def tick(self) -> None:
        """Versions that have come or gone since the last look; one that is only named differently has done neither."""
        now = {(info.base, info.version) for info in self._models.values()}
        for model, version in sorted(now - self._served):
            self.put("model", model, version)
        for model, version in sorted(self._served - now):
            self.put("model_gone", model, version)
        self._served = now

    def all(self) -> list[Mark]:
        """Those that are kept, the newest first."""
        return [mark for _, mark in self._recent.newest()]

    def news(self) -> Iterator[Mark]:
        """Those that nobody has been told of yet."""
        told, self._told = self._told, self._recent.count - 1
        for _, mark in self._recent.newest(told):
            yield mark

    def _worker_down(self, event: WorkerDown) -> None:
        if not event.was_asked:
            self.put("worker_down", detail=str(event.worker))

    def _divided(self, event: Divided) -> None:
        parts = [f"{version} {share:.4g} %" for version, share in event.percent.items()]
        self.put("divided", event.model, ", ".join(parts + [f"{version} +" for version in event.shadow]))


def _base(name: str) -> str:
    return name.partition("@")[0]
