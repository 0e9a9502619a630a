"""Is this an overload that lasts? The policy serves the newest first only then."""

from __future__ import annotations

import math

# All in multiples of the deadline or of what the slots can do.
SHORT_MEMORY = 0.2  # notices the end of a burst
LONG_MEMORY = 4.0  # averages chance away; counted from when the backlog did not fit, so a clear overload shows at once
STEP = 0.01  # of a memory: how finely it fades
ENTER_RATE, LEAVE_RATE = 1.3, 1.1  # a turn at 1.2 times the capacity costs about 1 point of half a minute
STILL_RATE = 0.8  # less than this after a burst: it is over
CERTAINTY = 2.0  # standard deviations of the counted rate above ENTER_RATE: chance alone must not turn the order
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


class Arrivals:
    """The arrival rate of one model, over a short while, and since the backlog has not fitted."""

    __slots__ = ("long", "short")

    def __init__(self, deadline_s: float) -> None:
        self.short = ArrivalRate(SHORT_MEMORY * deadline_s)
        self.long = RateSince(LONG_MEMORY * deadline_s)


class ServedShare:
    """The share of its tickets that a lane could run, over about the last `memory_s`."""

    __slots__ = ("offered", "taken")

    def __init__(self, memory_s: float) -> None:
        self.offered = ArrivalRate(memory_s)  # counts of tickets
        self.taken = ArrivalRate(memory_s)

    def share(self, now: float) -> float:
        offered = self.offered.rate(now)
        return self.taken.rate(now) / offered if offered else 1.0


class Overload:
    """Remembers since when the backlog has not fitted, and whether the overload counts as lasting."""

    __slots__ = ("_behind_from", "_is_lasting")

    def __init__(self) -> None:
        self._behind_from = math.inf
        self._is_lasting = False

    def fell_behind(self, now: float, deadline_s: float) -> bool:
        """Not everything that waits can be served in time. Is this new?"""
        is_new = self._behind_from == math.inf
        self._behind_from = min(self._behind_from, now + PATIENCE * deadline_s)
        return is_new

    def caught_up(self) -> None:
        """Nothing waits any more."""
        self._behind_from = math.inf
        self._is_lasting = False

    def is_behind(self, now: float) -> bool:
        """Has it gone on for longer than a burst?"""
        return now >= self._behind_from

    def is_lasting(self, short: float, long: float, deviation: float) -> bool:
        """`short` and `long` are arrival rates as multiples of what the slots can do; `deviation` is of `long`."""
        self._is_lasting = long > (LEAVE_RATE if self._is_lasting else ENTER_RATE + CERTAINTY * deviation)
        return self._is_lasting and short > 1.0
