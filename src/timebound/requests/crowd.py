"""Many who wait for one moment while nothing is computed: the first are answered so early that the last is not late.

An answer takes its time to be asked for and to be written. That of a single request is in the margin; that of a
thousand who have one deadline is not, as it adds up: so it is counted backward from the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from timebound.requests.request import Attempt, Phase

_AHEAD_S = 2.0
"""So far ahead is looked: as long as the longest queue takes to be answered."""
MANY = 32
"""Fewer than this are answered within the margin."""
_START_S, _LEAST_S, _MOST_S = 0.0003, 0.0002, 0.002
"""What an answer is taken to cost at first, at least and at most: up to a quarter of that was seen on idle cores, but
when workers are away, others are starting. A little early costs nothing here, as nothing is computed meanwhile."""
_FORGOTTEN = 0.002
"""Per answer, of a cost that turned out to be lower; a higher one counts at once."""
_SPARE = 1.25


class Crowd:
    """Learns what one answer of many costs, and says who must be answered now."""

    def __init__(self) -> None:
        self.each_s = _START_S
        """What to reckon with per answer."""
        self._out = 0

    def asked(self) -> int:
        """A fallback is asked for; how many are out with it."""
        self._out += 1
        return self._out

    def answered(self, took_s: float, of: int, alone_s: float) -> float:
        """It came after so long, as one of so many; a single one takes `alone_s`. What it would have taken alone."""
        self._out -= 1
        alone_took_s = max(0.0, took_s - of * self.each_s)
        if of >= MANY:
            each_s = min(_MOST_S, max(_LEAST_S, _SPARE * (took_s - alone_s) / of))
            self.each_s = max(each_s, self.each_s + _FORGOTTEN * (each_s - self.each_s))
        return alone_took_s

    def due(self, waiting: Iterable[Attempt], until: float) -> list[Attempt]:
        """Those who must be answered before `until`, as all are answered one after the other, each by its guard's time.

        Who is being computed, or has asked for a fallback already, is not counted.
        """
        near = [
            attempt
            for attempt in waiting
            if attempt.guard_at < until + _AHEAD_S
            and not attempt.is_last_chance
            and attempt.request.phase is not Phase.RUNNING
        ]
        near.sort(key=lambda attempt: attempt.guard_at)
        return near[: self.count_due([attempt.guard_at for attempt in near], until)]

    def count_due(self, times: Sequence[float], until: float) -> int:
        """How many of these, whose last moments are in order, must be answered before `until`."""
        latest = inf
        for place in range(len(times) - 1, -1, -1):
            latest = min(times[place], latest - self.each_s)
            if latest <= until:
                return place + 1
        return 0
