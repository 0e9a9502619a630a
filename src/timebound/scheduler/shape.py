"""The slow part of an estimate: what a batch costs, fitted to the means of what was measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache

from timebound.scheduler.queue import length_bucket

TRUST = 2  # times what was ever run: so far the shape is believed
# A cell is the mean of about its last ten batches, and weighs as much. Members and crowds follow as fast: more slowly
# than the drift, so that what is common to all goes there. A cell whose model has changed since weighs this much.
CELL_RATE = 0.1
IMPLAUSIBLE = 3.0  # times the seconds per item of a smaller batch; for what was measured in a bad hour only
# The smallest batch within 1 % of the best rate wins: it answers earlier, and serves CPU-like bursts better by 1.6
# points; it costs 0.4 at the capacity. When behind for longer than a burst, the very best rate counts.
RATE_TOLERANCE = 0.01
# But it must have so many fewer items than the fastest; else that is taken. Without it the GPU-like median at the
# capacity is 0.62 of the deadline instead of 0.57, and the closed loop of `benchmarks/serving/overhead.py` is slower.
SMALLER = 0.95
# A cell so close to the line (relative) is on it; else noise would choose the batch size: 1 point, CPU-like, from 1.5x.
LINE_NOISE = 0.03
UNKNOWN_S = 1e-3  # before the first observation; small, so that nothing is refused for want of knowledge


class Shape:
    """An affine line through the cells, and the cells' own deviations from it."""

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes  # the batches that the backend runs; empty: all
        self.overhead, self.per_item = 0.0, UNKNOWN_S
        self.is_guessed = False
        self.cells: dict[tuple[int, int], list[float]] = {}  # -> count, mean batch, mean size, mean seconds
        self._corrections: dict[int, list[tuple[float, float]]] = {}  # by length; kept until the next fit

    def padded(self, batch: int) -> int:
        """The size that a batch is run with."""
        return next((size for size in self.sizes if size >= batch), batch) if self.sizes else batch

    def bucket(self, batch: int) -> int:
        """Under which batches of about this size are known: each step is one where there are steps."""
        return self.padded(batch) if self.sizes else batch_bucket(batch)

    def line(self, work: float) -> float:
        return self.overhead + self.per_item * work

    def guess(self, seconds: float, work: float) -> None:
        """All that is known. Half of it may be overhead: an optimist's guess, so that larger batches get their try."""
        self.overhead, self.per_item = seconds / 2, seconds / 2 / work
        self.is_guessed = True

    def multiply(self, factor: float, is_old: Callable[[int], bool]) -> None:
        """All that ran lately takes so many times as long; what is old stays as it was measured."""
        self.overhead, self.per_item = self.overhead * factor, self.per_item * factor
        for (bucket, _), cell in self.cells.items():
            if not is_old(bucket):
                cell[3] *= factor

    def fit(self, is_old: Callable[[int], bool]) -> None:
        """Weighted least squares through the cells; relative errors count."""
        self._corrections.clear()
        self._drop_leftovers(is_old)
        s0 = s1 = s2 = t0 = t1 = 0.0
        for count, batch, size, seconds in self.cells.values():
            work = batch * size
            weight = min(count, 1.0 / CELL_RATE) / (seconds * seconds)
            s0 += weight
            s1 += weight * work
            s2 += weight * work * work
            t0 += weight * seconds
            t1 += weight * work * seconds
        spread = s0 * s2 - s1 * s1
        if spread <= 1e-4 * s0 * s2:  # one size only: keep the proportions, move the level
            change = (t0 / s0) / self.line(s1 / s0)
            self.overhead, self.per_item = self.overhead * change, self.per_item * change
            return
        self.per_item = (s0 * t1 - s1 * t0) / spread
        self.overhead = (t0 - self.per_item * s1) / s0
        if self.per_item <= 0:
            self.overhead, self.per_item = t0 / s0, 1e-9
        if self.overhead < 0:
            self.overhead, self.per_item = 0.0, t1 / s2

    def _drop_leftovers(self, is_old: Callable[[int], bool]) -> None:
        """Forget sizes last run in a bad hour (a paused machine, a greedy neighbour), or they are never run again.

        Nothing real makes an item several times dearer only because more of them go together.
        """
        least = math.inf  # seconds per item of those with less work
        for work, key, seconds in sorted((cell[1] * cell[2], key, cell[3]) for key, cell in self.cells.items()):
            if is_old(key[0]) and seconds / work > IMPLAUSIBLE * least:
                del self.cells[key]
            least = min(least, seconds / work)

    def seconds(self, batch: int, size: float) -> float:
        """What a batch that is run with this many items takes."""
        return self.line(batch * size) * _correction(self._points(length_bucket(size)), batch)

    def curve(self, bucket: int, size: float, last: int) -> list[float]:
        """The seconds of batches of 0 to `last`, never falling."""
        points = self._points(bucket)
        seconds, highest, known = [0.0], 0.0, 0
        for batch in range(1, last + 1):
            padded = self.padded(batch)
            if padded != known:
                highest = max(highest + 1e-9, self.line(padded * size) * _correction(points, padded))
                known = padded
            seconds.append(highest)
        return seconds

    def cuts(self, seconds: list[float]) -> list[int]:
        """How many of 0, 1, 2 ... items to run: all, or those that fill the step below if that has the better rate."""
        kept, below = [0], 0
        for count in range(1, len(seconds)):
            below = count if count in self.sizes else below
            is_better = below and below * seconds[count] > count * seconds[below] * (1.0 + RATE_TOLERANCE)
            kept.append(below if is_better else count)
        return kept

    def choose(self, seconds: list[float], last: int) -> tuple[int, int]:
        """(the smallest batch of nearly the best rate, the one of the very best rate) of those up to `last`."""
        batches = [size for size in self.sizes if size <= last] or range(1, last + 1)
        rates = {batch: batch / seconds[batch] for batch in batches}
        fastest = max(rates, key=rates.__getitem__)
        enough = rates[fastest] * (1.0 - RATE_TOLERANCE)
        best = next(batch for batch, rate in rates.items() if rate >= enough)
        return (fastest if best > SMALLER * fastest else best), fastest

    def _points(self, bucket: int) -> list[tuple[float, float]]:
        """(log2 batch, correction of the line) of the cells of the nearest length, in order of batch."""
        points = self._corrections.get(bucket)
        if points is None:
            points = self._corrections[bucket] = self._gather(bucket)
        return points

    def _gather(self, bucket: int) -> list[tuple[float, float]]:
        lengths = {length for _, length in self.cells}
        if not lengths:
            return []
        nearest = min(lengths, key=lambda length: (abs(length - bucket), length))
        points = []
        for (_, length), (count, batch, size, seconds) in self.cells.items():
            if length == nearest:
                error = math.log(seconds / self.line(batch * size))
                if not self.sizes:  # steps are what they are; in between there is nothing to be chosen by noise
                    error *= count / (count + 1.0)
                    error = math.copysign(max(0.0, abs(error) - LINE_NOISE), error)
                points.append((math.log2(batch), math.exp(error)))
        return sorted(points)


def _correction(points: list[tuple[float, float]], batch: int) -> float:
    if not points:
        return 1.0
    place = math.log2(batch)
    i = bisect_left(points, (place,))
    if i == 0:
        return points[0][1]
    if i == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[i - 1], points[i]
    return low + (high - low) * (place - left) / (right - left)


@lru_cache(maxsize=4096)
def batch_bucket(batch: int) -> int:
    """Half octaves."""
    return int(2 * math.log2(batch) + 1e-9)
