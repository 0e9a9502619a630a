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
LASTING_RATE = 1.3  # a turn at 1.2 times the capacity costs about 1 point of half a minute
STILL_RATE = 0.8  # less than this after a burst: it is over
CERTAINTY = 2.0  # standard deviations of the counted rate above LASTING_RATE: chance alone must not turn the order
# An ensemble that has long been behind with one member each turns earlier: while it serves the oldest, the backlog of
# an overload delays full answers after its end. `benchmarks/policy/scheduler.py` simulates 10 s of 3.0x, deadline
# 0.25 s: full quality is back within 0.12 s, with a weight of 1 within 0.38 s; in time are 0.962 instead of 0.972, half
# of them by 0.14 of the deadline instead of 0.77.
ENSEMBLE_WEIGHT = 1.5
# Turning to the newest gives up the tickets that wait now: up to one deadline of work, once. Being behind for a whole
# deadline outlasts most bursts; with more patience more waits, and more is given up.
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
        return super().rate(now) / max(STEP, 1.0 - self._faded(now))

    def seconds(self, now: float) -> float:
        """An even count over so many seconds is as certain as this one: at first the time, at last twice the memory."""
        faded = self._faded(now)
        return 2.0 * self._memory_s * max(STEP, 1.0 - faded) / (1.0 + faded)

    def _faded(self, now: float) -> float:
        return math.exp(-max(0.0, now - self._since) / self._memory_s)


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

    def look(self, models: Sequence[Served], slots: int, item_s: float, now: float) -> tuple[bool, bool]:
        """Has it gone on for longer than a burst? Does work still arrive faster than it can be done, and for long?

        `item_s` is what one of them takes.
        """
        work_s = self._arrived_s(models, slots)
        self._short.add(work_s, now)
        self._long.add(work_s, now)
        if now < self._behind_from:
            return False, False
        short, long = self._short.rate(now), self._long.rate(now)
        deviation = (long * item_s / slots / self._long.seconds(now)) ** 0.5
        return short > STILL_RATE, short > 1.0 and long > LASTING_RATE + CERTAINTY * deviation

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
