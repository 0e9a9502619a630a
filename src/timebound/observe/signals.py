"""Numbers that say whether there are enough machines, and how they do, over the last ten seconds; always on.

`load_ratio`: seconds of work that arrive per second and slot, what is refused included. Below 1 the server can keep up,
and how well it does so does not change it: this is the number to scale on.
`in_time_ratio`: of the requests that were ours to answer, the share a model answered before its deadline. An alarm.
`utilisation`: the share of the slots' time that batches took. Small batches make it higher than the load.
`queue_seconds`: how long what waits now will take. Near zero until a server is overloaded: an alarm as well.
`failed_ratio`: of the requests that were ours to answer, the share that got an error, not even a fallback.
`store_hit_ratio`: of the answers, the share that was not computed for its own request: kept, or in work already.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from timebound.events import BatchFinished, Events
from timebound.observe.tally import Seen, Since, Tally
from timebound.types import Source

EVERY_S = 1.0
"""Between two looks."""
_LOOKS = 10

log = logging.getLogger("timebound.server")


class Look(NamedTuple):
    """What the scheduler knows at one moment: work that ever came, seconds that wait now, slots."""

    offered_s: float
    queue_s: float
    slots: int


class _Counts(NamedTuple):
    """Requests so far."""

    due: int = 0
    in_time: int = 0
    failed: int = 0
    answered: int = 0
    hits: int = 0

    def with_more(self, kind: Seen, count: int) -> _Counts:
        is_due, is_answer = kind.in_time is not None, bool(kind.source) and not kind.code
        return _Counts(
            self.due + count * is_due,
            self.in_time + count * bool(kind.in_time),
            self.failed + count * (is_due and bool(kind.code)),
            self.answered + count * is_answer,
            self.hits + count * (is_answer and kind.source != Source.COMPUTED),
        )

    def since(self, before: _Counts) -> _Counts:
        return _Counts(*(now - then for now, then in zip(self, before, strict=True)))


class _Moment(NamedTuple):
    at: float
    offered_s: float
    busy_s: float
    counts: _Counts


class Signals:
    """Counts what events tell, and is told the time once a second."""

    def __init__(
        self, events: Events, look: Callable[[float], Look], *, is_told: bool, tally: Tally | None = None
    ) -> None:
        self._since = Since(tally or Tally(events))
        self._counts = _Counts()
        self._look = look
        self._is_told = is_told
        self._busy_s = 0.0
        self._moments: deque[_Moment] = deque(maxlen=_LOOKS + 1)
        self._number = 0
        self._now = {"load_ratio": 0.0, "in_time_ratio": 1.0, "utilisation": 0.0, "queue_seconds": 0.0,
                     "failed_ratio": 0.0, "store_hit_ratio": 0.0}  # fmt: skip
        events.on(BatchFinished, self._batch_finished)

    def read(self) -> dict[str, float]:
        """All of them, as of the last look."""
        return dict(self._now)

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of them: name -> (help, read). Shares of answers are asked of their counters there."""
        return {
            "load_ratio": (
                "Seconds of work that arrive per second and slot, over 10 s.",
                lambda: self._now["load_ratio"],
            ),
            "in_time_ratio": (
                "Share of requests that a model answered in time, over 10 s.",
                lambda: self._now["in_time_ratio"],
            ),
            "utilisation": (
                "Share of the slots' time that batches took, over 10 s.",
                lambda: self._now["utilisation"],
            ),
            "queued_work_seconds": (
                "Seconds until what waits now would be done.",
                lambda: self._now["queue_seconds"],
            ),
        }

    def tick(self, now: float) -> None:
        """Look once more; every tenth time the signals are told in the log."""
        found = self._look(now)
        for kind, count in self._since.seen():
            self._counts = self._counts.with_more(kind, count)
        moment = _Moment(now, found.offered_s, self._busy_s, self._counts)
        self._moments.append(moment)
        first, slots = self._moments[0], max(1, found.slots)
        slot_s = (now - first.at) * slots
        if slot_s > 0:
            lately = self._counts.since(first.counts)
            self._now = {
                "load_ratio": round((moment.offered_s - first.offered_s) / slot_s, 4),
                "in_time_ratio": _share(lately.in_time, lately.due, of_none=1.0),
                "utilisation": round(min(1.0, (moment.busy_s - first.busy_s) / slot_s), 4),
                "queue_seconds": round(found.queue_s, 4),
                "failed_ratio": _share(lately.failed, lately.due),
                "store_hit_ratio": _share(lately.hits, lately.answered),
            }
        self._number += 1
        if self._is_told and self._number % _LOOKS == 0:
            log.info("signals", extra={**self._now, "slots": found.slots})

    def _batch_finished(self, event: BatchFinished) -> None:
        self._busy_s += event.seconds


def _share(part: int, whole: int, *, of_none: float = 0.0) -> float:
    return round(part / whole, 4) if whole else of_none
