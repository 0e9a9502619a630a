"""The named moments in a server's life. Rooms emit them; metrics, logs and pages listen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from timebound.errors import RequestError
from timebound.types import Loss, Measured, Outcome, Quality, Question, Report, Result, Run

log = logging.getLogger("timebound.events")

E = TypeVar("E")


class Answered(msgspec.Struct, frozen=True):
    """A request got its answer (or its item's own error), `seconds` after it arrived."""

    request: Question
    result: Result
    status: int
    seconds: float


class Refused(msgspec.Struct, frozen=True):
    """A request was turned away or failed before any worker answered it; `code` says why."""

    model: str
    request_id: str
    code: str
    status: int
    seconds: float
    client: str = ""
    address: str = ""
    question: Question | None = None
    """None if it was turned away before it was read."""
    error: RequestError | None = None

    @property
    def predicted_s(self) -> float | None:
        """How long its answer would have taken from then on, where that is why there is none."""
        return None if self.error is None else self.error.predicted_s

    @property
    def run(self) -> Run | None:
        """The batch that it was in when it was given up."""
        return None if self.error is None else self.error.run


class TurnedAway(msgspec.Struct, frozen=True):
    """A client was stopped on its connection, before its request could be given to a model; `code` says why."""

    code: str


class BatchStarted(msgspec.Struct, frozen=True):
    """A batch went to a slot; `reason` says why now and why this size, `queued` how many wait on."""

    model: str
    size: int
    reason: str
    queued: int
    run: Run | None = None

    @classmethod
    def of(cls, run: Run, queued: int) -> BatchStarted:
        """The start of this batch."""
        return cls(run.model, run.size, run.reason, queued, run)


class BatchFinished(msgspec.Struct, frozen=True):
    """A batch is over; `reason` says why it ended after so many members."""

    model: str
    size: int
    seconds: float
    predicted_s: float
    members: int
    reason: str
    run: Run | None = None
    report: Report | None = None
    """What its slot said last."""
    device_s: float = 0.0
    """What it took on a device, all in all."""

    @classmethod
    def of(cls, run: Run, report: Report, seconds: float, reason: str, device_s: float = 0.0) -> BatchFinished:
        """The end of this batch."""
        return cls(run.model, run.size, seconds, run.predicted_s, report.members, reason, run, report, device_s)


class Degraded(msgspec.Struct, frozen=True):
    """So many requests got less than the full answer; `reason` says why."""

    model: str
    count: int
    quality: Quality
    reason: str


class BatchLost(msgspec.Struct, frozen=True):
    """A batch's worker died with it, or was killed because it hung; `loss` says which."""

    model: str
    size: int
    loss: Loss
    run: Run | None = None


class Unprepared(msgspec.Struct, frozen=True):
    """A batch of a shape that its device did not prepare before serving."""

    model: str


class BatchesShrunk(msgspec.Struct, frozen=True):
    """Memory was short: a model's batches have at most `limit` items for a while."""

    model: str
    limit: int


class Quarantined(msgspec.Struct, frozen=True):
    """A body that killed its worker alone, more than once, is not run for so many seconds."""

    model: str
    seconds: float
    loss: Loss


class Kept(msgspec.Struct, frozen=True):
    """A result is in the shared store, `seconds` after it was there to be written."""

    model: str
    seconds: float


class NotKept(msgspec.Struct, frozen=True):
    """A result could not be kept in the shared store; `reason` says why."""

    model: str
    reason: str


class TakenOver(msgspec.Struct, frozen=True):
    """A request whose owner died, another gateway, is computed here."""

    model: str


class Compared(msgspec.Struct, frozen=True):
    """A version that gets copies answered one: `verdict` is agrees, differs or not_computed."""

    model: str
    version: str
    verdict: str
    sent: Outcome | None = None
    """What the client got; None with `copy` if there was nothing to compare it with."""
    copy: Outcome | None = None


class HandlersMeasured(msgspec.Struct, frozen=True):
    """Handlers of model archives told of numbers of their own."""

    rows: list[Measured]


class Reloaded(msgspec.Struct, frozen=True):
    """The target was loaded again, and these models are served of it."""

    models: list[str]


class ReloadFailed(msgspec.Struct, frozen=True):
    """The target could not be loaded again; `why` says what is wrong with it, and what was served still is."""

    why: str


class Divided(msgspec.Struct, frozen=True):
    """A model's requests are divided anew: the share of each version in percent, and who gets copies."""

    model: str
    percent: dict[str, float]
    shadow: list[str]


class WorkerUp(msgspec.Struct, frozen=True):
    """A worker is loaded, warmed up and takes batches."""

    worker: int
    pid: int
    slots: int


class WorkerDown(msgspec.Struct, frozen=True):
    """A worker's process ended; `code` is its exit code, negative for a signal."""

    worker: int
    pid: int
    code: int | None
    was_asked: bool


class Events:
    """Carries events to listeners; a listener that fails is logged and hurts nobody.

    `soon` calls a function at the end of this turn of the event loop; without it nothing is `put` off.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._soon = soon
        self._waiting: list[Any] = []
        self._listeners: dict[type, list[Callable[[Sequence[Any]], None]]] = {}

    def on(self, kind: type[E], listener: Callable[[E], None]) -> None:
        """Call `listener` with every event of this kind."""

        def each(events: Sequence[E]) -> None:
            for event in events:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", kind.__name__)

        self.on_many(kind, each)

    def on_many(self, kind: type[E], listener: Callable[[Sequence[E]], None]) -> None:
        """Call `listener` with events of this kind, those together that were put together: for what there is most of.

        Counting twenty answers of one batch in one call takes half the time of twenty calls.
        """
        self._listeners.setdefault(kind, []).append(listener)

    def emit(self, event: Any) -> None:
        """Tell everyone who listens for this kind of event, now; and before it what was put off."""
        if self._waiting:
            self._tell_waiting()
        self._tell(type(event), (event,))

    def put(self, event: Any) -> None:
        """Tell it with the others of this turn of the event loop, before anything that is emitted."""
        if self._soon is None:
            self.emit(event)
            return
        if not self._waiting:
            self._soon(self._tell_waiting)
        self._waiting.append(event)

    def _tell_waiting(self) -> None:
        events, self._waiting = self._waiting, []
        for kind, same in groupby(events, type):
            self._tell(kind, list(same))

    def _tell(self, kind: type, events: Sequence[Any]) -> None:
        for listener in self._listeners.get(kind, ()):
            try:
                listener(events)
            except Exception:
                log.exception("a listener failed on %s", kind.__name__)
