"""Four numbers that say whether there are enough machines, over the last ten seconds; always on.

`load_ratio`: seconds of work that arrive per second and slot, what is refused included. Below 1 the server can keep up,
and how well it does so does not change it: this is the number to scale on.
`in_time_ratio`: of the requests that were ours to answer, the share a model answered before its deadline. An alarm.
`utilisation`: the share of the slots' time that batches took. Small batches make it higher than the load.
`queue_seconds`: how long what waits now will take. Near zero until a server is overloaded: an alarm as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from timebound.events import BatchFinished, Events
from timebound.observe.tally import Since, Tally

EVERY_S = 1.0
"""Between two looks."""
_LOOKS = 10

log = logging.getLogger("timebound.server")


class Look(NamedTuple):
    """What the scheduler knows at one moment: work that ever came, seconds that wait now, slots."""

    offered_s: float
    queue_s: float
    slots: int


class _Moment(NamedTuple):
    at: float
    offered_s: float
    busy_s: float
    in_time: int
    asked: int


class Signals:
    """Counts what events tell, and is told the time once a second."""

    def __init__(
        self, events: Events, look: Callable[[float], Look], *, is_told: bool, tally: Tally | None = None
    ) -> None:
        self._since = Since(tally or Tally(events))
        self._in_time = self._due = 0
        self._look = look
        self._is_told = is_told
        self._busy_s = 0.0
        self._moments: deque[_Moment] = deque(maxlen=_LOOKS + 1)
        self._number = 0
        self._now = {"load_ratio": 0.0, "in_time_ratio": 1.0, "utilisation": 0.0, "queue_seconds": 0.0}
        events.on(BatchFinished, self._batch_finished)

    def read(self) -> dict[str, float]:
        """The four, as of the last look."""
        return dict(self._now)

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of them: name -> (help, read)."""
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
            self._due += count * (kind.in_time is not None)
            self._in_time += count * bool(kind.in_time)
        moment = _Moment(now, found.offered_s, self._busy_s, self._in_time, self._due)
        self._moments.append(moment)
        first, slots = self._moments[0], max(1, found.slots)
        slot_s = (now - first.at) * slots
        asked = moment.asked - first.asked
        if slot_s > 0:
            self._now = {
                "load_ratio": round((moment.offered_s - first.offered_s) / slot_s, 4),
                "in_time_ratio": round((moment.in_time - first.in_time) / asked, 4) if asked else 1.0,
                "utilisation": round(min(1.0, (moment.busy_s - first.busy_s) / slot_s), 4),
                "queue_seconds": round(found.queue_s, 4),
            }
        self._number += 1
        if self._is_told and self._number % _LOOKS == 0:
            log.info("signals", extra={**self._now, "slots": found.slots})

    def _batch_finished(self, event: BatchFinished) -> None:
        self._busy_s += event.seconds
