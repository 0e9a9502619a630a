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
what must fit before a deadline, `fast` decides what cannot. One straggler, and what a machine that stood still held up
beside it, moves neither drift nor shape; two in a row are news. Where the backend runs some sizes only, a batch is
known under, and costs, the next size up. The fit is in `shape.py`, what outlives a restart in `saved.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence

from timebound.scheduler.queue import length_bucket
from timebound.scheduler.shape import CELL_RATE, TRUST, Shape, batch_bucket

WINDOW = 64  # ratios kept for the quantiles
SAFE = 0.95  # the quantile: one batch in twenty may be late, and one in twenty may be as quick as `fast`
FIRST_SPREAD = 0.2  # of a prediction, up and down: how far batches are taken to scatter until some have run
LONG_WINDOW = 2048  # observations kept for the profile: how batches scatter, bad moments included
DRIFT_RATE = 0.15  # of the way to what the last batch took
USUAL_RATE = 0.01  # the same for the drift that a profile tells of
REFIT_EVERY = 8  # observations; what is new refits at once
STRAGGLER = 2.0  # times what was predicted: a single one is not learned from
# Runs of a size before it may be found worse: one noisy run of two items must not settle it. Trying larger ones at all
# is worth 0.5 points in CPU-like bursts, and everything where the first large batch met a bad moment.
ENOUGH_TRIES = 4
RETRY_LARGER_EVERY = 256  # batches between two tries of a larger size that looked worse


class Curve:
    """Seconds of one member for batches of 1, 2, ... items of one size, never falling; without the fast parts."""

    __slots__ = ("best", "best_rate", "bulk", "cuts", "fastest", "seconds")

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds  # seconds[0] = 0; the list ends where trust ends
        self.best = self.fastest = 1  # the smallest batch of nearly the best rate, and that of the very best
        self.bulk = 1  # that of the very best rate where nobody is in a hurry
        self.best_rate = 1.0 / seconds[1]
        self.cuts: list[int] | None = None  # where there are steps: how many of so many to run, see `Shape.cuts`

    def largest(self, seconds: float) -> int:
        """The largest batch that takes at most `seconds`; 0 if none does."""
        return bisect_right(self.seconds, seconds) - 1

    def at(self, batch: int) -> float:
        """Seconds of a batch; beyond the trusted end in proportion."""
        last = len(self.seconds) - 1
        return self.seconds[batch] if batch <= last else self.seconds[last] * batch / last


class Estimate:
    """The latency model of one model."""

    def __init__(self, members: int = 1, max_batch: int = 64, sizes: tuple[int, ...] = ()) -> None:
        self.members = members
        self.max_batch = max_batch
        self.observations = 0
        self.safe = self.fast = 1.0  # quantiles of actual / predicted
        self.shape = Shape(sizes)
        self.largest_batch, self.largest_work = 1, 1.0  # ever run; trust reaches twice as far
        self.drift = 0.0  # this and the next three are logarithms
        self.usual_drift = 0.0  # its slow mean: how it was, whatever the last few batches were like
        self.member = [0.0] * members
        self.crowds: dict[int, float] = {}  # by busy slots
        self.uneven: dict[tuple[int, int], float] = {}  # (member, step): relative to what the member takes elsewhere
        self.at_once: dict[int, float] = {}  # by step: seconds of all members at once, see `staircase.py`
        self.known_members = {0}
        self.first = 1.0  # multiplies a curve: the first member
        self.recent: deque[tuple[int, float, int, int, float]] = deque(maxlen=LONG_WINDOW)  # as `observe` heard them
        self.curves: dict[int, Curve] = {}  # by length; kept until the shape is refitted
        self._scale = [1.0] * members
        self._crowding: dict[int, float] = {}  # busy slots -> factor; kept until `crowds` changes
        self._tries: dict[int, int] = {}  # batch bucket -> how often it ran
        self._tried: dict[int, int] = {}  # batch bucket -> observation number
        self._ratios: deque[float] = deque()
        self._ordered: list[float] = []
        for ratio in (1.0 - FIRST_SPREAD, 1.0 + FIRST_SPREAD):
            self._remember(ratio)
        self._suspicious: dict[tuple[int, ...], float] = {}  # (batch, length, member) far off last time: since when
        self._known: dict[tuple[int, float], float] = {}  # (batch, size) -> seconds; kept until the next fit

    # ------------------------------------------------------------------ asking

    @property
    def known(self) -> bool:
        return self.observations > 0

    def crowd(self, busy: int) -> float:
        """How much slower a batch runs while `busy` slots are in use."""
        if busy < 2 or not self.crowds:
            return 1.0
        factor = self._crowding.get(busy)
        if factor is None:
            nearest = max((level for level in self.crowds if level <= busy), default=0)
            factor = self._crowding[busy] = math.exp(self.crowds[nearest]) if nearest else 1.0
        return factor

    def scale(self, first: int, last: int) -> float:
        """Multiplies a curve: the members `first` up to but not including `last`."""
        return sum(self._scale[first:last])

    def curve(self, bucket: int, size: float, longest_s: float, bulk_s: float = 0.0) -> Curve:
        """The curve of a lane; `longest_s` bounds a batch through all members, `bulk_s` one of bulk work.

        Kept until the shape is refitted.
        """
        curve = self.curves.get(bucket)
        if curve is None:
            curve = self.curves[bucket] = Curve(self.shape.curve(bucket, size, self.trusted(size)))
            unit = self.scale(0, self.members) * self.crowd(max(self.crowds, default=1))
            last = max(1, curve.largest(longest_s / unit))
            curve.best, curve.fastest = self.shape.choose(curve.seconds, last)
            bulk = curve.largest(bulk_s / unit)
            curve.bulk = self.shape.choose(curve.seconds, bulk)[1] if bulk > last else curve.fastest
            curve.best_rate = curve.best / curve.seconds[curve.best]
            curve.cuts = self.shape.cuts(curve.seconds) if self.shape.sizes else None
        return curve

    def trusted(self, size: float) -> int:
        """The largest batch that is believed in: so far beyond what ever ran, and not more than memory holds."""
        batch = max(1.0, min(TRUST * self.largest_batch, TRUST * self.largest_work / size))
        return min(self.max_batch, self.shape.padded(int(batch)))

    def predict(self, batch: int, size: float, member: int = 0, busy: int = 1) -> float:
        """Seconds of one member on a batch of items padded to `size`."""
        shape = self._known.get((batch, size))
        if shape is None:
            shape = self._known[batch, size] = self.shape.seconds(self.shape.padded(batch), size)
        seconds = shape * self._scale[member] * (self.crowd(busy) if busy > 1 else 1.0)
        return seconds * self.uneven.get((member, self.shape.padded(batch)), 1.0) if self.uneven else seconds

    def divided(self, seconds: float, batch: int, first: int, last: int, told: Sequence[float] = ()) -> list[float]:
        """What each of the members `first` up to but not including `last` had of this time; `told`: as measured."""
        step, uneven, parts = self.shape.padded(batch), self.uneven, told
        if len(told) != last - first or min(told) <= 0.0:
            parts = [self._scale[member] * uneven.get((member, step), 1.0) for member in range(first, last)]
        return [seconds * part / sum(parts) for part in parts]

    def wants_try(self, batch: int) -> bool:
        """Is it time to look again at a batch of this size, though it looked worse?"""
        if not self.known or batch > self.trusted(1.0):
            return False
        bucket = self.shape.bucket(batch)
        return self._tries.get(bucket, 0) < ENOUGH_TRIES or self.is_long_ago(bucket)

    def is_long_ago(self, bucket: int) -> bool:
        """Have batches of about this size not run for a while?"""
        return self.observations - self._tried.get(bucket, -RETRY_LARGER_EVERY) >= RETRY_LARGER_EVERY

    # ------------------------------------------------------------------ learning

    def guess(self, seconds: float) -> None:
        """What one item of one member took somewhere else, for example at warm-up: holds until a batch has run."""
        if not self.known:
            self.shape.guess(seconds, 1.0)
            self.forget_shape()

    def observe(
        self, batch: int, size: float, seconds: float, member: int = 0, busy: int = 1, *, is_first: bool = False,
        began: float = math.inf,
    ) -> bool:  # fmt: skip
        """One member took `seconds` from `began` on a batch of items padded to `size`, with `busy` slots in use.

        `is_first`: its worker had never run such a batch. Whether it was taken for an accident, and not learned from.
        """
        shape, seconds = self.shape, max(seconds, 1e-6)
        if shape.sizes:
            batch = shape.padded(batch)
        self.observations += 1
        bucket = batch if shape.sizes else batch_bucket(batch)
        key = bucket, 0 if size == 1.0 else length_bucket(size)
        self._tried[bucket] = self.observations
        self._tries[bucket] = self._tries.get(bucket, 0) + 1
        if self.observations == 1 and not shape.is_guessed:
            shape.guess(seconds, batch * size)
            self._known.clear()
        cell = shape.cells.get(key)
        if is_first or member in self.known_members:  # else nothing was predicted
            ratio = seconds / self.predict(batch, size, member, busy)
            if (self._suspicious or not 1.0 / STRAGGLER <= ratio <= STRAGGLER) and self._is_straggler(
                ratio, cell, (*key, member), began, began + seconds, is_first=is_first
            ):
                if not is_first:
                    self._remember(STRAGGLER)  # it counts as slow, but how slow says nothing about the others
                    self.recent.append((batch, size, member, busy, seconds))
                return True
            self._remember(max(1.0 / STRAGGLER, min(ratio, STRAGGLER)))  # more is news, and learned at once
            self.recent.append((batch, size, member, busy, seconds))
        if self.uneven:
            seconds /= self.uneven.get((member, batch), 1.0)
        if batch > self.largest_batch or batch * size > self.largest_work:
            self.largest_batch = max(batch, self.largest_batch)
            self.largest_work = max(batch * size, self.largest_work)
            self.curves.clear()
        is_news = bool(self._suspicious) and (*key, member) in self._suspicious  # once more
        if cell is None:  # no drift can be told from a new shape
            shape.cells[key] = [1.0, float(batch), size, seconds / (self._scale[member] * self.crowd(busy))]
        else:
            rest = math.exp(self._move(cell, seconds, batch * size, member=member, busy=busy))
            if is_news and not 1.0 / STRAGGLER < rest < STRAGGLER:
                cell[0] = CELL_RATE  # it has changed, and not by chance
            _refine(cell, batch, size, rest, overhead=shape.overhead, per_item=shape.per_item)
        if cell is None or is_news or self.observations % REFIT_EVERY == 0:
            self._settle()
            shape.fit(self.is_long_ago)
            self.forget_shape()
        return False

    def _is_straggler(
        self, ratio: float, cell: list[float] | None, at: tuple[int, ...], began: float, now: float, *, is_first: bool
    ) -> bool:
        """A time far too long is an accident that holds up all who run; the next that began later is the truth."""
        if 1.0 / STRAGGLER <= ratio <= STRAGGLER:
            self._suspicious.pop(at, None)
            return False
        is_slow, is_guess = ratio > STRAGGLER, cell is not None and cell[0] < 1.0  # nobody has measured it yet
        if (is_first and is_slow) or not (is_guess or began >= self._suspicious.get(at, math.nan)):
            self._suspicious.setdefault(at, now)
            return is_slow
        return False

    def _remember(self, ratio: float) -> None:
        ratios, ordered = self._ratios, self._ordered
        ratios.append(ratio)
        insort(ordered, ratio)
        if len(ratios) > WINDOW:
            del ordered[bisect_left(ordered, ratios.popleft())]
        count = len(ordered)
        self.safe = max(1.0, ordered[int(SAFE * count)])
        self.fast = min(1.0, ordered[int((1.0 - SAFE) * count)])

    def _move(self, cell: list[float], seconds: float, work: float, *, member: int, busy: int) -> float:
        """Move the fast parts, and return what they leave to the cell, as a logarithm.

        The error is against the cell and not the line: a cell off the line is no drift. Only the product of drift and
        cell is ever seen. A cell therefore gets a fixed share of the very error that the drift got: were each to come
        to rest at a mean of its own, both would move for ever, one up and one down.
        """
        overhead, per_item = self.shape.overhead, self.shape.per_item
        expected = cell[3] * (overhead + per_item * work) / (overhead + per_item * cell[1] * cell[2])
        error = math.log(seconds / (expected * self._scale[member] * (self.crowd(busy) if busy > 1 else 1.0)))
        if member not in self.known_members:
            self.known_members.add(member)
            self.member[member] = error
            self.rescale()
            return 0.0
        self.drift += DRIFT_RATE * error
        self.usual_drift += USUAL_RATE * (self.drift - self.usual_drift)
        if member:
            self.member[member] += CELL_RATE * error
        if busy > 1:
            level = self.crowds.get(busy, max(self.crowds.values(), default=0.0))
            self.crowds[busy] = min(math.log(busy), max(0.0, level + CELL_RATE * error))
            self._crowding.clear()
        self.rescale()
        return (1.0 - DRIFT_RATE) * error

    def _settle(self) -> None:
        """What is usual belongs to the shape: no prediction of what runs changes, and drifts stay small."""
        self.shape.multiply(math.exp(self.usual_drift), self.is_long_ago)
        self.drift -= self.usual_drift
        self.usual_drift = 0.0
        self.rescale()

    def known_from_start(self, sizes: tuple[int, ...]) -> None:
        """Batches of these sizes were measured before the first request."""
        self.observations = max(self.observations, ENOUGH_TRIES)
        self._tries = dict.fromkeys(sizes, ENOUGH_TRIES)
        self._tried = dict.fromkeys(sizes, self.observations)

    def rescale(self) -> None:
        """The fast parts have changed."""
        self._scale = [math.exp(self.drift + part) for part in self.member]
        self.first = self._scale[0]

    def forget_shape(self) -> None:
        """The shape has changed: what was worked out from it is asked for anew."""
        self.curves.clear()
        self._known.clear()
        self._crowding.clear()


def _refine(cell: list[float], batch: int, size: float, ratio: float, *, overhead: float, per_item: float) -> None:
    """A batch of this cell took `ratio` of what was expected of its size; the cell keeps its distance from the line."""
    count, mean_batch, mean_size, seconds = cell
    weight = max(CELL_RATE, 1.0 / (count + 1.0))
    off_line = seconds / (overhead + per_item * mean_batch * mean_size)
    mean_batch += weight * (batch - mean_batch)
    mean_size += weight * (size - mean_size)
    cell[:] = (
        count + 1.0,
        mean_batch,
        mean_size,
        off_line * (overhead + per_item * mean_batch * mean_size) * ratio**weight,
    )
