"""What was decided about single requests, and where the time of each went: the last some thousands of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import msgspec

from timebound.events import Answered, Events, Refused
from timebound.observe.rings import Recent
from timebound.types import Quality, Run, Source, Timing

KEPT = 4_096
_NO_TIME = Timing()


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request got less than the full answer, another's, or none; who shows it puts that into words."""

    at: float
    """On the monotonic clock."""
    kind: str
    """refused, failed, partial, fallback, joined, stored or late."""
    reason: str
    model: str
    request: str
    version: str = ""
    status: int = 0
    actual_ms: float = 0.0
    """From its arrival to its answer."""
    limit_ms: float | None = None
    predicted_ms: float | None = None
    """What was expected: of its batch, or, if refused, of it from then on."""
    batch: int | None = None
    size: int = 0
    members: int = 0
    of_members: int = 0


class Past(msgspec.Struct, frozen=True, gc=False):
    """One request that is over: what its budget was, and what its answer says of where it went."""

    id: str
    model: str
    version: str
    status: int
    limit_s: float
    seconds: float
    outcome: str
    """full, partial or fallback; or the code of its error."""
    source: str
    queue_s: float = 0.0
    timing: Timing = _NO_TIME
    predicted_s: float | None = None
    run: Run | None = None

    @classmethod
    def of(cls, event: Answered | Refused) -> Past:
        """What is known of it when it is over."""
        if isinstance(event, Answered):
            question, result = event.request, event.result
            return cls(
                question.id, question.model, result.version, event.status, question.deadline - question.arrived,
                event.seconds, result.outcome.code or result.quality, result.source, result.queue_s, result.timing,
                None, result.run,
            )  # fmt: skip
        asked = event.question
        return cls(
            event.request_id, event.model, "" if asked is None else asked.version, event.status,
            inf if asked is None else asked.deadline - asked.arrived, event.seconds, event.code, "",
            predicted_s=event.predicted_s, run=event.run,
        )  # fmt: skip

    def beside(self) -> Iterator[tuple[str, float, float]]:
        """Members that ran side by side: from when, in seconds from its arrival, and how long each took."""
        before_s = self.queue_s + self.timing.prepare_s
        for number, (began_s, took_s) in enumerate(self.timing.beside_s, 1):
            yield f"member {number}", before_s + began_s, took_s

    def parts(self) -> Iterator[tuple[str, float]]:
        """Where its time went, in seconds, in order: the parts add up to the whole."""
        left_s = self.seconds
        for name, seconds in _parts(self):
            took_s = min(max(0.0, seconds), left_s)
            left_s -= took_s
            yield name, took_s
        yield "waiting" if not self.source else {"joined": "joined", "stored": "store"}.get(self.source, "way"), left_s


class Decisions:
    """Listens to answers and refusals."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._now = now
        self.recent: Recent[Decision] = Recent(KEPT)
        self._past: Recent[Past] = Recent(KEPT)
        events.on_many(Answered, self._answered)
        events.on(Refused, self._refused)

    def find(self, request: str) -> Past | None:
        """The last request of this id that is over, if it was among the last."""
        return next((past for _, past in self._past.newest() if past.id == request), None)

    def matching(self, *, reason: str = "", model: str = "", request: str = "") -> Iterator[tuple[int, Decision]]:
        """Decisions, the newest first; what is given must be the same (of a model, also its versions)."""
        for number, made in self.recent.newest():
            if (
                (not reason or reason in (made.reason, made.kind))
                and (not model or made.model == model)
                and (not request or made.request == request)
            ):
                yield number, made

    def _answered(self, events: Sequence[Answered]) -> None:
        full, computed, pasts = Quality.FULL, Source.COMPUTED, []
        for event in events:
            question, result, seconds = event.request, event.result, event.seconds
            limit_s, code = question.deadline - question.arrived, result.outcome.code
            pasts.append(
                Past(  # as `Past.of` says, without a call
                    question.id, question.model, result.version, event.status, limit_s, seconds,
                    code or result.quality, result.source, result.queue_s, result.timing, None, result.run,
                )
            )  # fmt: skip
            if code or seconds > limit_s or result.quality is not full or result.source is not computed:
                self._decided(event, code, limit_s)
        self._past.put_all(pasts)

    def _decided(self, event: Answered, code: str, limit_s: float) -> None:
        question, result, run = event.request, event.result, event.result.run
        kind = _kind(event, code, limit_s)
        if kind:
            self.recent.put(
                Decision(
                    self._now(), kind, code or result.reason or result.source.value, question.model, question.id,
                    result.version, event.status, _ms(event.seconds), _ms(limit_s),
                    None if run is None else _ms(run.predicted_s), None if run is None else run.id, result.batch_size,
                    result.members, result.of_members,
                )
            )  # fmt: skip

    def _refused(self, event: Refused) -> None:
        question, run = event.question, event.run
        predicted_s = event.predicted_s if run is None else run.predicted_s
        limit_s = inf if question is None else question.deadline - question.arrived
        version = "" if question is None else question.version
        self._past.put(Past.of(event))
        self.recent.put(
            Decision(
                self._now(), "refused" if event.status in (429, 503, 504) else "failed", event.code, event.model,
                event.request_id, version, event.status, _ms(event.seconds), None if limit_s == inf else _ms(limit_s),
                None if predicted_s is None else _ms(predicted_s), None if run is None else run.id,
                0 if run is None else run.size,
            )
        )  # fmt: skip


def _kind(event: Answered, code: str, limit_s: float) -> str:
    """What is to be told of an answer; nothing of one that is full, in time and its own."""
    if code:
        return "failed"
    result = event.result
    if result.quality is not Quality.FULL:
        return result.quality.value
    if event.seconds > limit_s:
        return "late"
    return "" if result.source is Source.COMPUTED else result.source.value


def budget(past: Past, margin_s: float) -> dict[str, Any]:
    """Where a request's time went, part by part: the parts add up to the whole."""
    parts = [{"part": name, "ms": _ms(took_s)} for name, took_s in past.parts()]
    has_limit, run = past.limit_s != inf, past.run
    predicted_s = past.predicted_s if run is None else run.predicted_s
    return {
        "request": past.id, "model": past.model, "version": past.version, "status": past.status,
        "outcome": str(past.outcome), "source": str(past.source), "batch": None if run is None else run.id,
        "slot": "" if run is None else run.slot, "parts": parts,
        "beside": [{"part": name, "from_ms": _ms(from_s), "ms": _ms(took_s)} for name, from_s, took_s in past.beside()],
        "total_ms": _ms(past.seconds), "deadline_ms": _ms(past.limit_s) if has_limit else None,
        "margin_ms": _ms(min(margin_s, past.limit_s)) if has_limit else None,
        "predicted_ms": None if predicted_s is None else _ms(predicted_s),
    }  # fmt: skip


def _parts(past: Past) -> Iterator[tuple[str, float]]:
    """What is known of it, in order; what is left over is the last part."""
    if past.source != Source.COMPUTED:
        return
    if past.outcome == Quality.FALLBACK:
        yield "fallback", past.queue_s
        return
    yield "queue", past.queue_s
    yield "prepare", past.timing.prepare_s
    for number, member_s in enumerate(past.timing.members_s, 1):
        yield f"member {number}", member_s
    yield "infer", past.timing.infer_s - sum(past.timing.members_s)
    yield "finish", past.timing.finish_s


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
