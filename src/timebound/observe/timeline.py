"""Which batch ran on which slot, from when to when: the last ones, and those that run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from timebound.events import BatchFinished, BatchLost, BatchStarted, Events
from timebound.observe.rings import Recent
from timebound.types import Run, Timing

KEPT = 2_048
_AT_ONCE = 128
"""Batches of a trace that are written at once: two milliseconds' work."""


class Ran(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch that is over, as JSON has it; times in milliseconds."""

    batch: int
    model: str
    slot: str
    started: float
    """On the monotonic clock, in seconds."""
    ms: float
    predicted_ms: float
    left_ms: float
    """Until it had to be over, when it started."""
    size: int
    reason: str
    end: str
    queued: int = 0
    members: int = 0
    of_members: int = 0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    finish_ms: float = 0.0


class Over(msgspec.Struct, frozen=True):
    """A batch that is over, as it is kept: what is shown is made of it when somebody looks."""

    run: Run
    seconds: float
    end: str
    queued: int = 0
    members: int = 0
    of_members: int = 0
    timing: Timing = Timing()


class Timeline:
    """Listens to batches."""

    def __init__(self, events: Events) -> None:
        self.recent: Recent[Over] = Recent(KEPT)
        self.running: dict[str, tuple[Run, int]] = {}
        """By slot, the batch and how many waited on when it went out."""
        events.on(BatchStarted, self._started)
        events.on(BatchFinished, self._finished)
        events.on(BatchLost, self._lost)

    def _started(self, event: BatchStarted) -> None:
        if event.run is not None:
            self.running[event.run.slot] = (event.run, event.queued)

    def _finished(self, event: BatchFinished) -> None:
        run, report = event.run, event.report
        if run is not None and report is not None:
            waited = self._over(run)
            over = Over(run, event.seconds, event.reason, waited, event.members, report.of_members, report.timing)
            self.recent.put(over)

    def _lost(self, event: BatchLost) -> None:
        if event.run is not None:  # how long it ran is not told
            self.recent.put(Over(event.run, 0.0, str(event.loss), self._over(event.run)))

    def _over(self, run: Run) -> int:
        """Its slot may have its next batch already; how many waited on when it went out."""
        known = self.running.get(run.slot)
        if known is None or known[0] is not run:
            return 0
        del self.running[run.slot]
        return known[1]

    def trace(self) -> Iterator[list[dict[str, Any]]]:
        """The last batches as Chrome's and Perfetto's trace viewers read them, some at a time: each takes time."""
        batches = [over for _, over in self.recent.newest()]
        lanes = {slot: number for number, slot in enumerate(sorted({over.run.slot for over in batches}), 1)}
        yield [
            {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": slot}}
            for slot, number in lanes.items()
        ]
        for first in range(0, len(batches), _AT_ONCE):
            yield [_span(shown(over), lanes[over.run.slot]) for over in batches[first : first + _AT_ONCE]]


def _span(ran: Ran, lane: int) -> dict[str, Any]:
    facts = {"batch": ran.batch, "size": ran.size, "reason": ran.reason, "end": ran.end,
             "predicted_ms": ran.predicted_ms}  # fmt: skip
    return {"ph": "X", "pid": 1, "tid": lane, "name": ran.model, "cat": "batch",
            "ts": round(ran.started * 1e6), "dur": round(ran.ms * 1e3), "args": facts}  # fmt: skip


def shown(over: Over) -> Ran:
    """As JSON has it."""
    run, timing = over.run, over.timing
    left_ms = _ms(run.latest_end - run.started)
    facts = (run.id, run.model, run.slot, run.started, _ms(over.seconds), _ms(run.predicted_s), left_ms, run.size)
    stages = (_ms(timing.prepare_s), _ms(timing.infer_s), _ms(timing.finish_s))
    return Ran(*facts, run.reason, over.end, over.queued, over.members, over.of_members, *stages)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
