"""Which models are served, in which versions, and since when; everyone else asks here, or listens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec

from timebound.clock import Clock
from timebound.types import ModelInfo
from timebound.versions import Traffic


class Lot(msgspec.Struct):
    """One model's versions: where each one's part of the line from 0 to 1 ends, and who gets copies."""

    ends: list[float]
    infos: list[ModelInfo]
    shadows: list[ModelInfo]

    def draw(self, name: str) -> ModelInfo:
        """The version for a request: the same for the same key or, without one, the same id."""
        point = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64
        return self.infos[min(bisect_right(self.ends, point), len(self.infos) - 1)]


class Catalogue:
    """The models that have answered a warm-up run; versions beside a main one are called `<model>@<version>`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: list[tuple[Callable[[ModelInfo], None], Callable[[str, str | None], None]]] = []
        self.models: dict[str, ModelInfo] = {}
        self.since: dict[str, float] = {}
        """When each of them was first served, on the monotonic clock."""
        self.lots: dict[str, Lot] = {}
        """By model, how its requests are divided among its versions, where there are several."""

    def listen(self, added: Callable[[ModelInfo], None], removed: Callable[[str, str | None], None]) -> None:
        """Hear of every model that is served from now on, or as something else than before, and of those that go.

        `removed` gets the name, and that of the model which takes over what waits, if there is one.
        """
        self._listeners.append((added, removed))

    def update(self, models: Sequence[ModelInfo], traffic: Mapping[str, Traffic]) -> None:
        """Serve exactly these from now on, their requests divided like that."""
        gone = set(self.models) - {info.name for info in models}
        for info in models:
            self.models[info.name] = info
            self.since.setdefault(info.name, self._clock.now())
            for added, _ in self._listeners:
                added(info)
        self.lots = _lots(models, traffic)
        for name in gone:
            base = self.models.pop(name).base
            del self.since[name]
            for _, removed in self._listeners:
                removed(name, base if base != name and base in self.models else None)

    @property
    def names(self) -> list[str]:
        """The models' names, without those of their further versions."""
        return sorted({info.base for info in self.models.values()})

    @property
    def shortest_s(self) -> float:
        """The shortest deadline of all models."""
        return min((info.deadline_s for info in self.models.values()), default=1.0)


def _lots(models: Sequence[ModelInfo], traffic: Mapping[str, Traffic]) -> dict[str, Lot]:
    lots: dict[str, Lot] = {}
    by_base: dict[str, dict[str, ModelInfo]] = {}
    for info in models:
        by_base.setdefault(info.base, {})[info.version] = info
    for base, versions in by_base.items():
        folder = next(iter(versions.values())).folder or ""
        if len(versions) == 1 or folder not in traffic:
            continue
        # A version may lack one of several classes: the others share its part.
        shares = traffic[folder].split.items()
        split = {version: share for version, share in shares if share > 0 and version in versions}
        total = sum(split.values())
        ends = list(accumulate(share / total for share in split.values()))
        shadows = [versions[version] for version in traffic[folder].shadow if version in versions]
        if split:
            lots[base] = Lot(ends, [versions[version] for version in split], shadows)
    return lots
