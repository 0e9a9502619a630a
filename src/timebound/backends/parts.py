"""In how many parts a network runs a batch: as few items at once as cost no time.

What a network makes of its items between two layers lies in memory until the next layer has read it. For a batch of
large items that is more than a core's caches hold: such a batch takes longer than its parts do one after another, and
several times the memory, which each slot keeps. Where items are small it is the other way round: weights are read once
for a whole batch. So the two are compared, within a batch that is run in a small and in a large part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

from timebound.clock import Clock

_FIRST = 8
"""Items; a convolution on pictures gains nothing from more at once."""
_GAIN = 0.04
"""Of an item's time: what twice as many at once must save, to be worth their memory."""
_TRIES = 4
"""Comparisons that are decided by: the best of so many was disturbed least."""
_AGAIN = 64
"""One in so many batches is compared anew, in case the first were misled."""


class Parts:
    """How the batches of one network are cut; used by several threads."""

    def __init__(self, clock: Clock) -> None:
        self.size = _FIRST
        """Items of a part, about; more once that has proved faster."""
        self._clock = clock
        self._tries: list[tuple[float, float]] = []
        self._uncompared = 0
        self._comparing = threading.Lock()

    def run(self, count: int, compute: Callable[[int, int], None]) -> None:
        """Have `compute` run a batch of so many items, from a place up to another, one part after another."""
        places = _evenly(0, count, self.size)
        # One comparison at a time, for its memory.
        if len(places) > 2 and self._is_time() and self._comparing.acquire(blocking=False):
            try:
                self._compare(count, compute)
            finally:
                self._comparing.release()
            return
        for start, end in pairwise(places):
            compute(start, end)

    def _is_time(self) -> bool:
        self._uncompared += 1
        return len(self._tries) < _TRIES or self._uncompared >= _AGAIN

    def _compare(self, count: int, compute: Callable[[int, int], None]) -> None:
        small = min(self.size, count // 3)
        large = min(2 * self.size, count - small)
        is_small_first = len(self._tries) % 2 == 0
        middle = small if is_small_first else large
        places, rest = [0, middle, small + large], _evenly(small + large, count, self.size)
        times = [self._clock.now()]
        for start, end in pairwise(places):
            compute(start, end)
            times.append(self._clock.now())
        if count > rest[0]:
            for start, end in pairwise(rest):
                compute(start, end)
        first_s, second_s = times[1] - times[0], times[2] - times[1]
        small_s, large_s = (first_s, second_s) if is_small_first else (second_s, first_s)
        self._uncompared = 0
        self._tries = [*self._tries[1 - _TRIES :], (small_s / small, large_s / large)]
        if len(self._tries) == _TRIES and self._is_larger_faster():
            self.size *= 2
            self._tries = []

    def _is_larger_faster(self) -> bool:
        small_s = min(small for small, _ in self._tries)
        large_s = min(large for _, large in self._tries)
        return large_s < small_s * (1 - _GAIN)


def _evenly(start: int, end: int, size: int) -> Sequence[int]:
    """Where parts of about this size begin and end."""
    count = round((end - start) / size) or 1
    return [start + (end - start) * number // count for number in range(count + 1)]
