"""How long will this batch take? Learned online, per model, from the batches that ran.

A prediction is a product of parts that change at different speeds:

    seconds = shape(batch, size) * drift * member * crowd

* **shape**: an affine line `overhead + per_item * batch * padded size`, fitted to the running means of cells (half
  octaves of batch, quarters of size), times the measured correction of those nearby. The line extrapolates, the cells
  hold the real shape: a transformer that is fastest alone and a network that gains from batches are both learned.
  Hours of single items do not erase what a batch of 32 costs.
* **drift**: fast, for a noisy neighbour or a changed clock; it moves a seventh of the way with each batch.
* **member**: members of an ensemble cost different amounts; relative to the first.
* **crowd**: batches on neighbouring slots slow each other down; relative to running alone.

The 95 % and 5 % quantiles of actual / predicted over the last 64 batches say how far to trust it: `safe` multiplies
what must fit before a deadline, `fast` decides what is hopeless. One straggler moves neither drift nor shape; two
in a row are news.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from functools import lru_cache
from typing import Any

from timebound.scheduler.queue import length_bucket

WINDOW = 64  # ratios kept for the quantiles
LONG_WINDOW = 2048  # observations kept for the profile: how batches scatter, bad moments included
SCATTER_PARTS = 64  # what is saved of that: the means of so many parts of equal count
OLD_COUNT = 5.0  # as so many observations a cell of a saved profile counts
DRIFT_RATE = 0.15
DRIFT_LEAK = 0.005  # what lasts moves into the cells; else drift would wander off with sizes that are not run
USUAL_RATE = 0.01
PART_RATE = 0.05  # member and crowd: slower than drift, so that what is common to all goes there
CELL_RATE = 0.1
REFIT_EVERY = 8  # observations; a new cell refits at once
IMPLAUSIBLE = 3.0  # times the seconds per item of a smaller batch
STRAGGLER = 2.0  # a single ratio above this is not learned from
ENOUGH_TRIES = 4  # runs of a size before it may be found worse: one noisy run of two items must not settle it
RETRY_LARGER_EVERY = 256  # batches between two tries of a larger size that looked worse
# The smallest batch within 1 % of the best rate wins: it answers earlier, and serves bursts better by up to 2 points.
# But it must be smaller by some items: 63 instead of 64 cost 0.1 points at the capacity of the GPU-like curve.
# When not everything has fitted for longer than a burst, the very best rate counts.
RATE_TOLERANCE = 0.01
SMALLER = 0.95  # of the items of the fastest batch, at most
LINE_NOISE = 0.03  # a cell so close to the line (relative) is on it; else noise would choose the batch size
UNKNOWN_S = 1e-3  # before the first observation; small, so that nothing is refused for want of knowledge


class Curve:
    """Seconds of one member for batches of 1, 2, ... items of one size, never falling; without the fast parts."""

    __slots__ = ("best", "best_rate", "fastest", "longest", "seconds", "size")

    def __init__(self, size: float, seconds: list[float]) -> None:
        self.size = size
        self.seconds = seconds  # seconds[0] = 0; the list ends where trust ends
        self.best = self.fastest = self.longest = 1
        self.best_rate = 1.0 / seconds[1]

    def limit(self, longest_s: float, unhurried: float = 1.0) -> None:
        """Choose the batches that take at most `longest_s`: of about the best rate, and of the very best.

        `longest` is the one of the very best rate if it may take `unhurried` times as long.
        """
        last = max(1, self.largest(unhurried * longest_s))
        rates = [batch / self.seconds[batch] for batch in range(1, last + 1)]
        self.longest = 1 + rates.index(max(rates))
        del rates[max(1, self.largest(longest_s)) :]
        self.fastest = 1 + rates.index(max(rates))
        enough = max(rates) * (1.0 - RATE_TOLERANCE)
        self.best = next(batch for batch, rate in enumerate(rates, 1) if rate >= enough)
        if self.best > SMALLER * self.fastest:
            self.best = self.fastest
        self.best_rate = rates[self.best - 1]

    def largest(self, seconds: float) -> int:
        """The largest batch that takes at most `seconds`; 0 if none does."""
        return bisect_right(self.seconds, seconds) - 1

    def at(self, batch: int) -> float:
        """Seconds of a batch; beyond the trusted end in proportion."""
        last = len(self.seconds) - 1
        return self.seconds[batch] if batch <= last else self.seconds[last] * batch / last


class Estimate:
    """The latency model of one model."""

    def __init__(self, members: int = 1, max_batch: int = 64) -> None:
        self.members = members
        self.max_batch = max_batch
        self.observations = 0
        self.safe, self.fast = 1.2, 0.8  # quantiles of actual / predicted
        self.overhead, self.per_item = 0.0, UNKNOWN_S
        self.largest_batch, self.largest_work = 1, 1.0  # ever run; trust reaches twice as far
        self._drift = 0.0  # all three are logarithms
        self._usual_drift = 0.0  # its slow mean: how it was, whatever the last few batches were like
        self._member = [0.0] * members
        self._known_members = {0}
        self._crowd: dict[int, float] = {}
        self._crowding: dict[int, float] = {}  # busy slots -> factor; kept until `_crowd` changes
        self._scale = [1.0] * members
        self.first = 1.0  # multiplies a curve: the first member
        self._cells: dict[tuple[int, int], list[float]] = {}  # -> count, mean batch, mean size, mean seconds
        self._is_guessed = False
        self._tries: dict[int, int] = {}  # batch bucket -> how often it ran
        self._tried: dict[int, int] = {}  # batch bucket -> observation number
        self._ratios: deque[float] = deque()
        self._ordered: list[float] = []
        self._recent: deque[tuple[int, float, int, int, float]] = deque(maxlen=LONG_WINDOW)  # as `observe` heard them
        self._suspicious: set[tuple[int, int, int]] = set()  # (batch, length, member) whose last time was far off
        self.curves: dict[int, Curve] = {}  # by length; kept until the shape is refitted
        self._corrections: dict[int, list[tuple[float, float]]] = {}  # by length; kept until the next fit
        self._shapes: dict[tuple[int, float], float] = {}  # (batch, size) -> seconds; kept until the next fit

    def resize(self, members: int, max_batch: int) -> None:
        """The model changed its shape: keep what was learned for the members that are still there."""
        self.members, self.max_batch = members, max_batch
        self._member = [*self._member, *[0.0] * members][:members]
        self._rescale()
        self.curves.clear()

    # ------------------------------------------------------------------ asking

    @property
    def known(self) -> bool:
        return self.observations > 0

    def crowd(self, busy: int) -> float:
        """How much slower a batch runs while `busy` slots are in use."""
        if busy < 2 or not self._crowd:
            return 1.0
        factor = self._crowding.get(busy)
        if factor is None:
            nearest = max((level for level in self._crowd if level <= busy), default=0)
            factor = self._crowding[busy] = math.exp(self._crowd[nearest]) if nearest else 1.0
        return factor

    def scale(self, first: int, last: int) -> float:
        """Multiplies a curve: the members `first` up to but not including `last`."""
        return sum(self._scale[first:last])

    def curve(self, bucket: int, size: float, longest_s: float, unhurried: float = 1.0) -> Curve:
        """The curve of a lane; `longest_s` bounds a batch through all members. Kept until the shape is refitted.

        For tickets with much time it may be `unhurried` times as long.
        """
        curve = self.curves.get(bucket)
        if curve is None:
            curve = self.curves[bucket] = self._build(bucket, size)
            unit = self.scale(0, self.members) * self.crowd(max(self._crowd, default=1))
            curve.limit(longest_s / unit, unhurried)
        return curve

    def predict(self, batch: int, size: float, member: int = 0, busy: int = 1) -> float:
        """Seconds of one member on a batch of items padded to `size`."""
        shape = self._shapes.get((batch, size))
        if shape is None:
            correction = self._correction(self._points(length_bucket(size)), batch)
            shape = self._shapes[batch, size] = self._line(batch * size) * correction
        return shape * self._scale[member] * self.crowd(busy)

    def wants_try(self, batch: int) -> bool:
        """Is it time to look again at a batch of this size, though it looked worse?"""
        if not self.known or batch > self.max_batch or batch > 2 * self.largest_batch:
            return False
        if self._tries.get(_batch_bucket(batch), 0) < ENOUGH_TRIES:
            return True
        return self.observations - self._tried.get(_batch_bucket(batch), -RETRY_LARGER_EVERY) >= RETRY_LARGER_EVERY

    # ------------------------------------------------------------------ learning

    def guess(self, seconds: float) -> None:
        """What one item of one member took somewhere else, for example at warm-up: holds until a batch has run."""
        if not self.known:
            # Half of it may be overhead: an optimistic guess, so that larger batches get their try.
            self.overhead = self.per_item = seconds / 2
            self._is_guessed = True
            self.curves.clear()
            self._shapes.clear()

    def observe(self, batch: int, size: float, seconds: float, member: int = 0, busy: int = 1) -> None:
        """One member took `seconds` on a batch of items padded to `size`, with `busy` slots in use."""
        seconds = max(seconds, 1e-6)
        self.observations += 1
        bucket, length = key = (_batch_bucket(batch), length_bucket(size))
        self._tried[bucket] = self.observations
        self._tries[bucket] = self._tries.get(bucket, 0) + 1
        if self.observations == 1 and not self._is_guessed:
            self.overhead, self.per_item = seconds / 2, seconds / 2 / (batch * size)  # as in `guess`
            self._shapes.clear()
        if member in self._known_members:  # of a member that never ran nothing was predicted
            self._recent.append((batch, size, member, busy, seconds))
            ratio = seconds / self.predict(batch, size, member, busy)
            if self._is_straggler(ratio, (bucket, length, member)):
                self._remember(STRAGGLER)  # it counts as slow, but how slow says nothing about the others
                return
            self._remember(ratio)
        if batch > self.largest_batch or batch * size > self.largest_work:
            self.largest_batch = max(batch, self.largest_batch)
            self.largest_work = max(batch * size, self.largest_work)
            self.curves.clear()
        cell = self._cells.get(key)
        if cell is not None:  # else no drift can be told from a new shape
            self._move(cell, seconds, batch * size, member=member, busy=busy)
        shape = seconds / (self._scale[member] * self.crowd(busy))
        if cell is None:
            self._cells[key] = [1.0, float(batch), size, shape]
        else:
            _fill_cell(cell, batch, size, shape)
        if cell is None or self.observations % REFIT_EVERY == 0:
            self._fit()

    def _is_straggler(self, ratio: float, where: tuple[int, int, int]) -> bool:
        """The first time that is far too long is taken for an accident, the second in a row for the truth."""
        if ratio > STRAGGLER and where not in self._suspicious:
            self._suspicious.add(where)
            return True
        self._suspicious.discard(where)
        return False

    def _remember(self, ratio: float) -> None:
        self._ratios.append(ratio)
        insort(self._ordered, ratio)
        if len(self._ratios) > WINDOW:
            del self._ordered[bisect_left(self._ordered, self._ratios.popleft())]
        count = len(self._ordered)
        self.safe = max(1.0, self._ordered[min(count - 1, int(0.95 * count))])
        self.fast = min(1.0, self._ordered[int(0.05 * count)])
        if count < 8:  # too few to be sure
            self.safe, self.fast = max(1.2, self.safe), min(0.8, self.fast)

    def _move(self, cell: list[float], seconds: float, work: float, *, member: int, busy: int) -> None:
        """Move the fast parts. The error is against the cell and not the line: a cell off the line is no drift."""
        expected = cell[3] * self._line(work) / self._line(cell[1] * cell[2])
        error = math.log(seconds / (expected * self._scale[member] * self.crowd(busy)))
        if member not in self._known_members:
            self._known_members.add(member)
            self._member[member] = min(4.0, max(-4.0, error))
        else:
            error = min(1.5, max(-1.5, error))
            self._drift += DRIFT_RATE * error - DRIFT_LEAK * self._drift
            self._usual_drift += USUAL_RATE * (self._drift - self._usual_drift)
            if member:
                self._member[member] += PART_RATE * error
            if busy > 1:
                level = self._crowd.get(busy, max(self._crowd.values(), default=0.0))
                self._crowd[busy] = min(math.log(busy) + 0.2, max(0.0, level + PART_RATE * error))
                self._crowding.clear()
        self._rescale()

    def _rescale(self) -> None:
        self._scale = [math.exp(self._drift + part) for part in self._member]
        self.first = self._scale[0]

    # ------------------------------------------------------------------ shape

    def _line(self, work: float) -> float:
        return self.overhead + self.per_item * work

    def _fit(self) -> None:
        """Weighted least squares through the cells; relative errors count, and a cell at most as ten batches."""
        self.curves.clear()
        self._corrections.clear()
        self._shapes.clear()
        self._drop_leftovers()
        s0 = s1 = s2 = t0 = t1 = 0.0
        for count, batch, size, seconds in self._cells.values():
            work = batch * size
            weight = min(count, 10.0) / (seconds * seconds)
            s0 += weight
            s1 += weight * work
            s2 += weight * work * work
            t0 += weight * seconds
            t1 += weight * work * seconds
        spread = s0 * s2 - s1 * s1
        if spread <= 1e-4 * s0 * s2:  # one size only: keep the proportions, move the level
            change = (t0 / s0) / self._line(s1 / s0)
            self.overhead, self.per_item = self.overhead * change, self.per_item * change
            return
        self.per_item = (s0 * t1 - s1 * t0) / spread
        self.overhead = (t0 - self.per_item * s1) / s0
        if self.per_item <= 0:
            self.overhead, self.per_item = t0 / s0, 1e-9
        if self.overhead < 0:
            self.overhead, self.per_item = 0.0, t1 / s2

    def _drop_leftovers(self) -> None:
        """Forget sizes last run in a bad hour (a paused machine, a greedy neighbour), or they are never run again.

        Nothing real makes an item several times dearer only because more of them go together.
        """
        least = math.inf  # seconds per item of those with less work
        for work, key, seconds in sorted((cell[1] * cell[2], key, cell[3]) for key, cell in self._cells.items()):
            is_old = self.observations - self._tried.get(key[0], -RETRY_LARGER_EVERY) >= RETRY_LARGER_EVERY
            if is_old and seconds / work > IMPLAUSIBLE * least:
                del self._cells[key]
            least = min(least, seconds / work)

    def _points(self, bucket: int) -> list[tuple[float, float]]:
        """(log2 batch, correction of the line) of the cells of the nearest length, in order of batch."""
        points = self._corrections.get(bucket)
        if points is None:
            points = self._corrections[bucket] = self._gather(bucket)
        return points

    def _gather(self, bucket: int) -> list[tuple[float, float]]:
        lengths = {length for _, length in self._cells}
        if not lengths:
            return []
        nearest = min(lengths, key=lambda length: (abs(length - bucket), length))
        points = []
        for (_, length), (count, batch, size, seconds) in self._cells.items():
            if length == nearest:
                error = math.log(seconds / self._line(batch * size)) * count / (count + 1.0)
                beyond_noise = math.copysign(max(0.0, abs(error) - LINE_NOISE), error)
                points.append((math.log2(batch), math.exp(beyond_noise)))
        return sorted(points)

    @staticmethod
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

    def _build(self, bucket: int, size: float) -> Curve:
        """Twice the largest batch and the largest work ever run, and not more than memory holds."""
        trusted = int(max(1.0, min(2 * self.largest_batch, 2 * self.largest_work / size)))
        points = self._points(bucket)
        seconds, highest = [0.0], 0.0
        for batch in range(1, min(self.max_batch, trusted) + 1):
            highest = max(highest + 1e-9, self._line(batch * size) * self._correction(points, batch))
            seconds.append(highest)
        return Curve(size, seconds)

    # ------------------------------------------------------------------ across restarts

    def save(self) -> dict[str, Any]:
        """A small JSON-able profile; `restore` takes it back."""
        return {
            "cells": [[round(value, 7) for value in cell] for cell in self._cells.values()],
            "scale": [round(math.log(scale), 5) for scale in self._scale],
            "crowd": {str(level): round(value, 5) for level, value in self._crowd.items()},
            "largest": [self.largest_batch, self.largest_work],
            "quantiles": [round(self.fast, 4), round(self.safe, 4)],
            # For plans made from the profile; `restore` goes on from the last moment and needs none of these.
            "usual_drift": round(self._usual_drift, 5),
            "max_batch": self.max_batch,
            "scatter": self._scatter(),
        }

    def _scatter(self) -> list[list[float]]:
        """What was heard over what this profile predicts, from the quickest to the slowest, and seconds beyond.

        Stragglers count as STRAGGLER times the prediction, and the rest is in seconds: what delays them comes from
        outside and is as long for a short batch as for a long one. The means are those of all that was kept.
        """
        usual = math.exp(self._usual_drift - self._drift)
        heard = []
        for batch, size, member, busy, seconds in self._recent:
            predicted = usual * self.predict(batch, size, member, busy)
            heard.append((min(seconds / predicted, STRAGGLER), max(0.0, seconds - STRAGGLER * predicted)))
        heard.sort()
        parts = min(SCATTER_PARTS, len(heard))
        edges = [len(heard) * part // parts for part in range(parts + 1)] if parts else []
        return [
            [round(sum(column) / (end - start), 5) for column in zip(*heard[start:end], strict=True)]
            for start, end in itertools.pairwise(edges)
        ]

    def restore(self, profile: dict[str, Any], most_count: float = OLD_COUNT) -> None:
        """Continue from a saved profile. Old counts weigh little, so that a changed machine is learned quickly."""
        cells = profile.get("cells", [])
        if not cells:
            return
        for count, batch, size, seconds in cells:
            key = (_batch_bucket(max(1, round(batch))), length_bucket(size))
            self._cells[key] = [min(count, most_count), batch, size, seconds]
        drift, *_ = scale = [*profile["scale"], *[0.0] * self.members][: self.members]
        self._drift, self._member = drift, [value - drift for value in scale]
        self._known_members = {member for member, value in enumerate(scale) if member == 0 or value}
        self._rescale()
        self._crowd = {int(level): value for level, value in profile["crowd"].items()}
        self._crowding.clear()
        self.largest_batch, self.largest_work = profile["largest"]
        self.fast, self.safe = profile["quantiles"]
        self.observations = 4
        self.overhead = self.per_item = UNKNOWN_S
        self._fit()


def _fill_cell(cell: list[float], batch: int, size: float, shape: float) -> None:
    count, mean_batch, mean_size, mean_shape = cell
    weight = max(CELL_RATE, 1.0 / (count + 1.0))
    cell[:] = (
        count + 1.0,
        mean_batch + weight * (batch - mean_batch),
        mean_size + weight * (size - mean_size),
        mean_shape + weight * (shape - mean_shape),
    )


@lru_cache(maxsize=4096)
def _batch_bucket(batch: int) -> int:
    return int(2 * math.log2(batch) + 1e-9)
