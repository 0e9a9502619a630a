"""A model as the scheduler sees it: its lanes, its estimate, and how fast its work arrives."""

from __future__ import annotations

from math import inf
from typing import Any

from timebound.scheduler.estimate import Curve, Estimate
from timebound.scheduler.load import LONG_MEMORY, Arrivals, ServedShare
from timebound.scheduler.queue import Lane, length_bucket
from timebound.scheduler.ticket import ModelSpec, Ticket

# A batch through all members takes at most this share of the deadline: more gains little rate and costs answers
# that are near their deadline when the load changes.
BATCH_SHARE = 0.4
# So much longer it may be if all who wait have far more time left, and no other model has a shorter deadline. The bound
# is there for those who come while it runs: with 0.64 of the deadline they still have time for a batch of their own.
UNHURRIED = 1.6

# Lanes have a quarter of an octave, or half of one where a batch's overhead is more than this share of the deadline.
# Narrow lanes pad little but make small batches. Texts of mixed length, in time with narrow lanes and with wide ones,
# simulated as in `tests/scheduler/test_goodput.py` with three seeds: at the capacity 0.95 and 0.89 (0.5 ms overhead),
# 0.92 and 0.89 (5 ms, CPU-like); at 0.7 times the capacity 0.79 and 0.96 (80 ms, GPU-like).
WIDE_FROM = 0.02
WIDE = 2  # buckets

OLD_LENGTHS = 1000.0  # requests of earlier days that count when lengths are told; today's outweigh them soon

GROW_AFTER_S = 60.0  # without want of memory, until batches of twice the size are allowed


class Served:
    """A model with its lanes and its estimate."""

    __slots__ = (
        "arrivals",
        "estimate",
        "grows_at",
        "lanes",
        "last_learned",
        "lengths",
        "queued",
        "roomy",
        "shares",
        "slowest_s",
        "spec",
        "trusted_from",
    )

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.estimate = Estimate(spec.members, spec.max_batch)
        self.lanes: dict[int, Lane] = {}
        self.shares: dict[int, ServedShare] = {}  # by lane
        self.lengths: dict[int, float] = {}  # by bucket: how many came, for plans made from the profile
        self.arrivals = Arrivals(spec.deadline_s)
        self.grows_at = inf  # when larger batches are tried again after memory ran short
        self.queued = 0
        self.trusted_from = 0  # observations before the code that runs now was loaded
        self.slowest_s = 0.0  # of the batches seen lately
        self.roomy = 1  # no more than this many can be too many; see `Scheduler._displace`
        self.last_learned = inf  # when a batch last taught something; before, when somebody was first turned away

    def respecify(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.estimate.resize(spec.members, spec.max_batch)
        self.arrivals = Arrivals(spec.deadline_s)
        self.trusted_from = self.estimate.observations

    def shrink(self, batch: int, now: float) -> int:
        """A batch of this size was too much for the memory: half of it is the limit from now on, which is returned."""
        limit = max(1, min(batch, self.estimate.max_batch) // 2)
        self.estimate.resize(self.spec.members, limit)
        self.grows_at = now + GROW_AFTER_S
        return limit

    def grow(self, now: float) -> None:
        """A while has passed without such trouble: twice as many, up to what the model allows."""
        limit = min(2 * self.estimate.max_batch, self.spec.max_batch)
        self.estimate.resize(self.spec.members, limit)
        self.grows_at = now + GROW_AFTER_S if limit < self.spec.max_batch else inf

    def lane(self, size: float) -> Lane:
        """Where an item of this size waits."""
        bucket = length_bucket(size)
        if bucket % WIDE and self._is_overhead_large():
            bucket += WIDE - bucket % WIDE
        lane = self.lanes.get(bucket)
        if lane is None:
            lane = self.lanes[bucket] = Lane(self.spec.name, bucket)
            self.shares[bucket] = ServedShare(LONG_MEMORY * self.spec.deadline_s)
        return lane

    def _is_overhead_large(self) -> bool:
        estimate = self.estimate
        return estimate.overhead * estimate.scale(0, estimate.members) > WIDE_FROM * self.spec.deadline_s

    def count_length(self, size: float) -> None:
        """Take note of one more request, for plans."""
        bucket = length_bucket(size)
        self.lengths[bucket] = self.lengths.get(bucket, 0.0) + 1.0

    def count_arrivals(self, now: float) -> None:
        """Take note of the tickets that have come since the last time; in one go, as most come in one turn."""
        for lane in self.lanes.values():
            if lane.fresh:
                work_s = lane.fresh * self.item_s(lane)
                self.arrivals.short.add(work_s, now)
                self.arrivals.long.add(work_s, now)
                self.shares[lane.bucket].offered.add(lane.fresh, now)
                lane.fresh = 0

    def save(self) -> dict[str, Any]:
        """A small JSON-able profile: the estimate, and how many came of each length."""
        return {**self.estimate.save(), "lengths": {str(bucket): count for bucket, count in self.lengths.items()}}

    def restore(self, profile: dict[str, Any]) -> None:
        """Continue from a saved profile."""
        self.estimate.restore(profile)
        self.trusted_from = self.estimate.observations
        known = profile.get("lengths", {})
        weight = min(1.0, OLD_LENGTHS / max(1.0, sum(known.values())))
        self.lengths = {int(bucket): count * weight for bucket, count in known.items()}

    def curve(self, lane: Lane) -> Curve:
        known = self.estimate.curves.get(lane.bucket)  # asked several times per request
        return known or self.estimate.curve(lane.bucket, lane.size, BATCH_SHARE * self.spec.deadline_s, UNHURRIED)

    def item_s(self, lane: Lane) -> float:
        """Slot seconds that one more ticket of this lane costs, with one member."""
        return self.estimate.first / self.curve(lane).best_rate

    def alone_s(self, lane: Lane) -> float:
        """Seconds of the first member on a single ticket of this lane."""
        curve = self.estimate.curves.get(lane.bucket) or self.curve(lane)  # asked for every request
        return self.estimate.first * curve.seconds[1]

    def backlog_s(self) -> float:
        """Slot seconds of all that waits, with one member each."""
        return sum(lane.count * self.item_s(lane) for lane in self.lanes.values() if lane.count)

    def last_deadline(self) -> float:
        """Of all that waits."""
        return max(queue.by_deadline.last[0] for lane in self.lanes.values() for queue in lane.queues if queue)

    def least_worthy(self) -> Ticket:
        """The oldest waiting ticket of the lowest rank."""
        queues = [lane.queues[-1] for lane in self.lanes.values() if lane.count]
        return max(queues, key=lambda queue: (queue.rank, -queue.oldest.arrived)).oldest

    def expired(self, end: float) -> list[Ticket]:
        """Remove and return what would be late even alone and fast, started so that it must end after `end`."""
        gone: list[Ticket] = []
        fast = self.estimate.fast if self.estimate.observations else 0.0
        for lane in self.lanes.values():
            if lane.count and (late := lane.expired(end + fast * self.alone_s(lane))):
                gone += late
                self.queued -= len(late)
        return gone
