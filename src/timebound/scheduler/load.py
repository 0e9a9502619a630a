"""Is this an overload that lasts? Only looked at while the backlog does not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from timebound.scheduler.queue import Lane
from timebound.scheduler.served import Served

# All in multiples of the deadline or of what the slots can do.
SHORT_MEMORY = 0.2  # notices the end of a burst
LONG_MEMORY = 4.0  # averages chance away; counted from when the backlog did not fit, so a clear overload shows at once
STEP = 0.01  # of a memory: how finely it fades
LASTING_RATE = 1.4  # a turn at 1.2 times the capacity costs about 1 point of half a minute, and chance adds to that
# An ensemble that has long been behind with one member each turns earlier: while it serves the oldest, the backlog of
# an overload delays full answers after its end. Simulated 10 s of 2.7x and 2.85x, deadline 0.25 s, six seeds: full
# quality is back within 0.12 and 0.06 s, with a weight of 1.5 within 0.34 and 0.19 s, with 1 within 0.7 and 0.3 s. With
# that 4 points more are in time at 3.0x, half of them by 0.6 of the deadline instead of 0.2.
ENSEMBLE_WEIGHT = 1.8
# Turning to the newest gives up the tickets that wait now: up to one deadline of work, once. Being behind for a whole
# deadline outlasts most bursts; with more patience more waits, and more is given up. To be behind at all is worth 3 to
# 5 points from 1.2x on; the newest first 0.9 of them (GPU-like, 1.5x), and the median at 0.3 to 0.45 instead of 0.9.
PATIENCE = 1.0


class ArrivalRate:
    """Seconds of work that arrive per second, over about the last `memory_s`."""

    __slots__ = ("_at", "_memory_s", "_sum")

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._sum = 0.0
        self._at = 0.0

    def add(self, work_s: float, now: float) -> None:
        if now - self._at > STEP * self._memory_s:  # arrivals a moment apart need no exponential each
            self._sum = self._decayed(now)
            self._at = now
        self._sum += work_s

    def rate(self, now: float) -> float:
        return self._decayed(now) / self._memory_s

    def _decayed(self, now: float) -> float:
        return self._sum * math.exp(-max(0.0, now - self._at) / self._memory_s) if self._sum else 0.0


class RateSince(ArrivalRate):
    """The same since a moment: what came before does not count, however short the time."""

    __slots__ = ("_since",)

    def __init__(self, memory_s: float) -> None:
        super().__init__(memory_s)
        self._since = 0.0

    def restart(self, now: float) -> None:
        self._sum, self._at, self._since = 0.0, now, now

    def rate(self, now: float) -> float:
        return super().rate(now) / max(STEP, 1.0 - math.exp(-max(0.0, now - self._since) / self._memory_s))


class Overload:
    """From when the backlog did not fit: how fast work arrives, and what share of each lane's tickets has run."""

    __slots__ = ("_at_first", "_behind_from", "_long", "_seen", "_short")

    def __init__(self, models: Sequence[Served], now: float) -> None:
        deadline_s = max(served.spec.deadline_s for served in models)
        self._behind_from = now + PATIENCE * deadline_s
        self._short = ArrivalRate(SHORT_MEMORY * deadline_s)
        self._long = RateSince(LONG_MEMORY * deadline_s)
        self._long.restart(now)
        self._seen = {served.spec.name: served.arrived_s for served in models}
        lanes = [lane for served in models for lane in served.lanes.values()]
        self._at_first = {id(lane): (lane.offered, lane.taken) for lane in lanes}

    def look(self, models: Sequence[Served], slots: int, now: float) -> tuple[bool, bool]:
        """Has it gone on for longer than a burst? Does work still arrive faster than it can be done, and for long?"""
        work_s = self._arrived_s(models, slots)
        self._short.add(work_s, now)
        self._long.add(work_s, now)
        if now < self._behind_from:
            return False, False
        is_behind = self._short.rate(now) > 1.0  # else the burst is over
        return is_behind, is_behind and self._long.rate(now) > LASTING_RATE

    def _arrived_s(self, models: Sequence[Served], slots: int) -> float:
        """Seconds of all slots that came since the last look."""
        work_s = 0.0
        for served in models:
            came_s = served.arrived_s - self._seen.get(served.spec.name, 0.0)
            self._seen[served.spec.name] = served.arrived_s
            weight = ENSEMBLE_WEIGHT if served.spec.members > 1 else 1.0
            work_s += weight * came_s * served.estimate.crowd(slots) / slots
        return work_s

    def share(self, lane: Lane) -> float:
        """Of the tickets of this lane that came since then, how many have run."""
        offered, taken = self._at_first.get(id(lane), (0, 0))
        return (lane.taken - taken) / max(1, lane.offered - offered)
