"""Divides a model's requests among its versions, and gives copies to those that are only compared."""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec

from timebound.errors import CopyLost, RequestError
from timebound.events import Compared, Events
from timebound.types import Deliver, ModelInfo, Request, Result, Source
from timebound.versions import Traffic

log = logging.getLogger("timebound.split")

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
        self._busy: set[str] = set()  # shadows that compute a copy

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
            # A version may lack one of several classes: the others share its part.
            shares = traffic[folder].split.items()
            split = {version: share for version, share in shares if share > 0 and version in versions}
            total = sum(split.values())
            ends = list(accumulate(share / total for share in split.values()))
            shadows = [versions[version] for version in traffic[folder].shadow if version in versions]
            if split:
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
        comparison = _Comparison(
            request, deliver, shadows=lot.shadows, busy=self._busy, submit=self._submit, events=self._events
        )
        return self._submit(request, comparison.first)


class _Comparison:
    """One request and its copies: they are sent when its own answer was computed, and compared with it."""

    def __init__(
        self,
        request: Request,
        deliver: Deliver,
        *,
        shadows: list[ModelInfo],
        busy: set[str],
        submit: Submit,
        events: Events,
    ) -> None:
        self._busy = busy
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
        for info in list(self._shadows):
            if info.name in self._busy:
                continue  # one copy at a time: a version that is slow or dies costs no more than one slot
            self._busy.add(info.name)
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
        self._busy.discard(info.name)
        if isinstance(shadow, CopyLost) and info in self._shadows:
            self._shadows.remove(info)  # the model's own list: nobody gets copies for it any more
            log.error("version %s of %s lost a worker; it gets no more copies until a reload", info.version, info.base)
        verdict = "not_computed"
        if isinstance(shadow, Result):
            verdict = "agrees" if _is_same(self._result, shadow) else "differs"
        self._events.emit(Compared(info.base, info.version, verdict))


def _is_same(one: Result, other: Result) -> bool:
    if one.outcome.code or other.outcome.code or one.outcome.media != "application/json":
        return (one.outcome.code, one.outcome.body) == (other.outcome.code, other.outcome.body)
    return bool(msgspec.json.decode(one.outcome.body) == msgspec.json.decode(other.outcome.body))
