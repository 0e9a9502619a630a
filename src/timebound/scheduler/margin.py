"""The time to keep free before a deadline, learned from how late this process really is."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 1024
_ENOUGH = 128
_WORST = 4
"""So many of the window's slowest tails are accidents (a paused machine); the next one is what to expect."""
_CEILING_S = 0.100


class Margin:
    """A high quantile of the last thousand tails: from a result being ready to its last byte handed to the kernel.

    Every tail counts: how long the answers of one batch took to write, and how late a timer fired.
    `start_s` holds until enough was seen, and it is never below `floor_s`: clients and the kernel are late too.
    """

    def __init__(self, start_s: float, floor_s: float = 0.005) -> None:
        self.seconds = start_s
        """What to keep free now."""
        self._floor_s = floor_s
        self._tails: deque[float] = deque()
        self._ordered: list[float] = []

    def observe(self, tail_s: float) -> None:
        """A tail was seen."""
        self._tails.append(tail_s)
        insort(self._ordered, tail_s)
        if len(self._tails) > _WINDOW:
            del self._ordered[bisect_left(self._ordered, self._tails.popleft())]
        if len(self._tails) >= _ENOUGH:
            self.seconds = min(_CEILING_S, max(self._floor_s, 1.25 * self._ordered[-1 - _WORST]))
