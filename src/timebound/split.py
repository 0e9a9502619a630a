"""Divides a model's requests among its versions, and gives copies to those that are only compared."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec

from timebound.errors import RequestError
from timebound.events import Compared, Events
from timebound.types import Deliver, ModelInfo, Request, Result, Source
from timebound.versions import Traffic

Submit = Callable[[Request, Deliver], Callable[[], None]]
_LEAST_PRIORITY = -99


class _Lot(msgspec.Struct):
    """One model's versions: where each one's part of the line from 0 to 1 ends, and who gets copies."""

    ends: list[float]
    infos: list[ModelInfo]
    shadows: list[ModelInfo]

    def draw(self, key: str | None) -> ModelInfo:
        """The version for a request: the same for the same key, else by chance."""
        if key is None:
            point = random.random()
        else:
            point = int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) / 2**64
        return self.infos[min(bisect_right(self.ends, point), len(self.infos) - 1)]


class Split:
    """Between the gate and the dispatcher. Models with one version pass untouched."""

    def __init__(self, submit: Submit, events: Events) -> None:
        self._submit = submit
        self._events = events
        self._lots: dict[str, _Lot] = {}

    def divide(self, models: Sequence[ModelInfo], traffic: Mapping[str, Traffic]) -> None:
        """From now on."""
        self._lots = {}
        by_base: dict[str, dict[str, ModelInfo]] = {}
        for info in models:
            by_base.setdefault(info.base, {})[info.version] = info
        for base, versions in by_base.items():
            folder = next(iter(versions.values())).folder or ""
            if len(versions) == 1 or folder not in traffic:
                continue
            split = {version: share for version, share in traffic[folder].split.items() if share > 0}
            ends = list(accumulate(split.values()))
            shadows = [versions[version] for version in traffic[folder].shadow]
            self._lots[base] = _Lot(ends, [versions[version] for version in split], shadows)

    def submit(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        """Hand a request to one version of its model, and a copy to each shadow."""
        lot = self._lots.get(request.model)
        if lot is None or request.served:
            return self._submit(request, deliver)
        info = lot.draw(request.key)
        request.served, request.version = info.name, info.version
        if not lot.shadows:
            return self._submit(request, deliver)
        comparison = _Comparison(request, lot.shadows, self._submit, self._events, deliver)
        return self._submit(request, comparison.first)


class _Comparison:
    """One request and its copies: they are sent when its own answer was computed, and compared with it."""

    def __init__(
        self, request: Request, shadows: list[ModelInfo], submit: Submit, events: Events, deliver: Deliver
    ) -> None:
        self._request = request
        self._shadows = shadows
        self._submit = submit
        self._events = events
        self._deliver = deliver
        self._result: Result | None = None

    def first(self, result: Result | RequestError) -> None:
        """The answer that the client gets; then the copies go out, behind everything that waits."""
        self._deliver(result)
        if isinstance(result, RequestError) or result.source is not Source.COMPUTED:
            return
        self._result = result
        request = self._request
        for info in self._shadows:
            copy = Request(
                f"{request.id}-shadow",
                request.model,
                request.body,
                request.arrived,
                request.deadline + info.deadline_s,  # nobody waits for it
                size=request.size,
                priority=_LEAST_PRIORITY,
                served=info.name,
                version=info.version,
                is_shadow=True,
            )
            try:
                self._submit(copy, lambda shadow, info=info: self._second(info, shadow))  # type: ignore[misc]
            except RequestError as error:
                self._second(info, error)

    def _second(self, info: ModelInfo, shadow: Result | RequestError) -> None:
        assert self._result is not None
        verdict = "not_computed"
        if isinstance(shadow, Result):
            verdict = "agrees" if _is_same(self._result, shadow) else "differs"
        self._events.emit(Compared(info.base, info.version, verdict))


def _is_same(one: Result, other: Result) -> bool:
    if one.outcome.code or other.outcome.code or one.outcome.media != "application/json":
        return (one.outcome.code, one.outcome.body) == (other.outcome.code, other.outcome.body)
    return bool(msgspec.json.decode(one.outcome.body) == msgspec.json.decode(other.outcome.body))
