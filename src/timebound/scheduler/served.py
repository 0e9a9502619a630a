"""A model as the scheduler sees it: its lanes, its estimate, what arrived; and the batches that run."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import inf

from timebound.scheduler.estimate import USUAL_RATE, Curve, Estimate
from timebound.scheduler.queue import LAST, LENGTHS_PER_OCTAVE, DeadlineQueue, Lane, length_bucket
from timebound.scheduler.ticket import Batch, ModelSpec, Phase, Ticket

# A batch through all members takes at most this share of the deadline: more gains little rate and costs answers
# that are near their deadline when the load changes (with 0.6, CPU-like bursts: 0.7 points).
BATCH_SHARE = 0.4
# So many times that for bulk work, see `backlog.is_bulk`: who comes meanwhile with the usual deadline still has time
# for a batch. Worth nothing in the simulator, where nobody has so much time; for the closed loop of `benchmarks/peers`.
BULK = 1.6

# Lanes have a quarter of an octave, or half of one where a batch's overhead is more than this share of the deadline.
# Narrow lanes pad little but make small batches. Texts of mixed length, in time with narrow lanes and with wide ones,
# simulated as in `tests/scheduler/test_goodput.py` with three seeds: at the capacity 0.95 and 0.89 (0.5 ms overhead),
# 0.92 and 0.89 (5 ms, CPU-like); at 0.7 times the capacity 0.79 and 0.96 (80 ms, GPU-like).
WIDE_FROM = 0.02

FIRST_HANG_S = 10.0  # for a batch whose like its worker never ran: it may load or compile something
DOUBT_AFTER_S = 0.25  # without a batch: nobody is turned away for longer because of what was once measured


class Served:
    """A model with its lanes and its estimate."""

    __slots__ = (
        "arrived_s", "estimate", "first_hang_s", "first_times", "grows_at", "is_slow_at_first", "lanes", "last_learned",
        "lengths", "queued", "ran", "roomy", "running", "slowest_s", "spec",
    )  # fmt: skip

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.estimate = Estimate(spec.members, spec.max_batch, spec.batch_sizes)
        self.lanes: dict[int, Lane] = {}
        self.lengths: dict[int, float] = {}  # by bucket: how many came, for plans made from the profile
        self.arrived_s = 0.0  # slot seconds of all first attempts that ever came
        self.grows_at = inf  # when larger batches are tried again after memory ran short
        self.queued = 0
        self.running = 0  # batches
        self.slowest_s = 0.0  # of the batches seen lately
        self.ran: set[int] = set()  # batch sizes
        self.is_slow_at_first = False  # see `firsts.py`
        self.first_hang_s = FIRST_HANG_S
        self.first_times: deque[float] = deque(
            maxlen=8
        )  # seconds of the last batches whose like their worker never ran
        self.roomy = 1  # no more than this many can be too many; see `backlog.displace`
        self.last_learned = inf  # when a batch last taught something; before, when somebody was first turned away

    def lane(self, size: float) -> Lane:
        """Where an item of this size waits."""
        bucket = 0 if size == 1.0 else length_bucket(size)
        wide = LENGTHS_PER_OCTAVE // 2
        if bucket % wide and self._is_overhead_large():
            bucket += wide - bucket % wide
        lane = self.lanes.get(bucket)
        if lane is None:
            lane = self.lanes[bucket] = Lane(self.spec.name, bucket)
        return lane

    def _is_overhead_large(self) -> bool:
        estimate = self.estimate
        return estimate.shape.overhead * estimate.scale(0, estimate.members) > WIDE_FROM * self.spec.deadline_s

    def count(self, ticket: Ticket, lane: Lane) -> None:
        """Take note of one more request."""
        ticket.is_counted, bucket = True, 0 if ticket.size == 1.0 else length_bucket(ticket.size)
        self.lengths[bucket] = self.lengths.get(bucket, 0.0) + 1.0
        lane.offered += 1
        curve = self.estimate.curves.get(lane.bucket) or self.curve(lane)
        self.arrived_s += self.estimate.first / curve.best_rate

    def curve(self, lane: Lane) -> Curve:
        known = self.estimate.curves.get(lane.bucket)  # asked several times per request
        longest_s = BATCH_SHARE * self.spec.deadline_s
        return known or self.estimate.curve(lane.bucket, lane.size, longest_s, BULK * longest_s)

    def item_s(self, lane: Lane) -> float:
        """Slot seconds that one more ticket of this lane costs, with one member."""
        curve = self.estimate.curves.get(lane.bucket) or self.curve(lane)
        return self.estimate.first / curve.best_rate

    def alone_s(self, lane: Lane) -> float:
        """Seconds of the first member on a single ticket of this lane."""
        curve = self.estimate.curves.get(lane.bucket) or self.curve(lane)
        return self.estimate.first * curve.seconds[1]

    def backlog_s(self) -> float:
        """Slot seconds of all that waits, with one member each."""
        return sum(lane.count * self.item_s(lane) for lane in self.lanes.values() if lane.count)

    def is_in_doubt(self, now: float) -> bool:
        """Was nothing learned for so long that the estimate may be out of date, and will not be soon?"""
        return not self.running and now - self.last_learned > DOUBT_AFTER_S

    def expired(self, end: float, now: float) -> list[Ticket]:
        """Remove and return what would be late even alone and fast, started so that it must end after `end`."""
        gone: list[Ticket] = []
        is_believed = self.estimate.observations and (self.running or not self.is_in_doubt(now))
        fast = self.estimate.fast if is_believed else 0.0
        for lane in self.lanes.values():
            if lane.count and (late := lane.expired(end + fast * self.alone_s(lane))):
                gone += late
                self.queued -= len(late)
        return gone


class LaneView:
    """A lane with its predictions at this moment: what a policy sees of it."""

    __slots__ = ("cap", "curve", "deadline_s", "estimate", "lane", "per_item", "safe", "served", "unit")

    def __init__(self, served: Served, lane: Lane, crowd: float) -> None:
        estimate = self.estimate = served.estimate
        self.served, self.lane = served, lane
        self.deadline_s = served.spec.deadline_s  # the model's own; a request may have given itself more time, or less
        self.curve = estimate.curves.get(lane.bucket) or served.curve(lane)
        self.unit = estimate.first * crowd  # the first member, on this machine, now
        self.safe = estimate.safe
        self.cap = self.curve.best
        self.per_item = self.unit / self.curve.best_rate

    def seconds(self, batch: int) -> float:
        """The first member on a batch of this many."""
        seconds = self.curve.seconds  # asked several times per decision
        return (seconds[batch] if batch < len(seconds) else self.curve.at(batch)) * self.unit

    def largest(self, slack: float) -> int:
        """The largest batch that safely fits into `slack` seconds."""
        return bisect_right(self.curve.seconds, slack / (self.safe * self.unit)) - 1

    def work(self, count: int) -> float:
        """Slot seconds for the first member of this many waiting tickets."""
        return count * self.per_item if count >= self.cap else self.seconds(count)

    def level_factor(self, level: int) -> float:
        """How much longer `level` members take than the first."""
        if level == 1:
            return 1.0
        return self.estimate.scale(0, min(level, self.estimate.members)) / self.estimate.first

    def firsts(self) -> list[DeadlineQueue]:
        """The queues of first attempts, the best rank first."""
        queues = self.lane.queues
        if not queues or not queues[-1].rank.is_retry:  # the usual case
            return queues
        return [queue for queue in queues if not queue.rank.is_retry]

    def retries(self) -> list[DeadlineQueue]:
        return [queue for queue in self.lane.queues if queue.rank.is_retry and queue.rank != LAST]

    def unwaited(self) -> list[DeadlineQueue]:
        return [queue for queue in self.lane.queues if queue.rank == LAST]


class InFlight:
    """The batches that run, and how many slots were busy while they did; what they took goes into the estimates."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._started = 0
        self._busy_seconds, self._busy_since = 0.0, 0.0  # integral of busy slots over time

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def busy(self) -> int:
        """Servers that are at work: here each slot is one."""
        return len(self._batches)

    def residuals(self, now: float, without: Batch | None = None) -> list[float]:
        """Predicted seconds left of each running stage."""
        return [max(0.0, batch.stage_end - now) for batch in self._batches.values() if batch is not without]

    def start(
        self, served: Served, tickets: list[Ticket], reason: str, now: float, *, slots: int, margin_s: float
    ) -> Batch:
        """A batch of these tickets, which have left their queues, takes a slot."""
        self._count_busy(now)
        busy = len(self._batches) + 1
        size, tightest = 0.0, inf
        for ticket in tickets:
            ticket.phase = Phase.RUNNING
            size = max(size, ticket.size)
            tightest = min(tightest, ticket.deadline)
        spec, estimate = served.spec, served.estimate
        crowd = slots if served.queued else busy
        times = [estimate.predict(len(tickets), size, member, crowd) for member in range(spec.members)]
        self._started += 1
        batch = Batch(
            self._started, spec.name, tickets, reason, size, now, sum(times), tightest - margin_s, busy,
            stage_started=now, stage_end=now + times[0], busy_mark=self._busy_seconds,
            served=served, estimate=estimate,
        )  # fmt: skip
        batch.step = estimate.shape.padded(len(tickets)) if spec.batch_sizes else len(tickets)
        self._batches[batch.id] = batch
        served.running += 1
        return batch

    def next_stage(self, batch: Batch, now: float, predicted_s: float) -> None:
        """Its next member runs from now."""
        self._count_busy(now)
        batch.stage_started, batch.stage_end, batch.busy_mark = now, now + predicted_s, self._busy_seconds

    def close(self, batch: Batch, now: float) -> None:
        """It is over, and its slot free."""
        if now != self._busy_since:  # mostly it has been counted when it was learned from
            self._count_busy(now)
        batch.closed = True
        batch.served.running -= 1
        del self._batches[batch.id]
        for ticket in batch.tickets:
            ticket.phase = Phase.ACCEPTED

    def learn(self, batch: Batch, seconds: float, now: float, members: int) -> None:
        """The members from those done up to `members` took `seconds`: divided among them as they did before."""
        self._count_busy(now)
        served: Served = batch.served
        if served.estimate is not batch.estimate:
            return  # new code has been loaded since: how fast the old was does not matter any more
        elapsed, busy = now - batch.stage_started, batch.busy
        if batch.server is not None:
            busy = 1  # batches on a device do not slow each other down: they wait
        elif elapsed > 0:
            busy = max(1, round((self._busy_seconds - batch.busy_mark) / elapsed))
        served.last_learned = now
        if not (batch.is_first or batch.may_stall):
            served.slowest_s = max(now - batch.started, (1.0 - USUAL_RATE) * served.slowest_s)
        items = len(batch.tickets) if batch.inferred is None else batch.inferred
        if items == 0 or batch.may_stall:
            return  # all were refused before the model saw them; or it says nothing about the next
        served.ran.add(items)
        if batch.is_at_once and batch.members_done == 0 and members == served.spec.members:
            return  # its members ran side by side; how long that takes says nothing about a busy server
        estimate, first, began = served.estimate, batch.members_done, batch.stage_started
        is_first = batch.is_first and items * batch.size > 1.0  # one item has run in every worker, at its warm-up
        if is_first:
            served.first_times.append(now - batch.started)
        is_accident, parts = False, [seconds]
        if members - first > 1:
            parts = estimate.divided(seconds, items, first, members, batch.members_s[first:])
        for member, part_s in enumerate(parts, first):
            is_accident |= estimate.observe(items, batch.size, part_s, member, busy, is_first=is_first, began=began)
        if is_first and is_accident and seconds > BATCH_SHARE * served.spec.deadline_s:
            served.is_slow_at_first = True

    def _count_busy(self, now: float) -> None:
        if now != self._busy_since:
            self._busy_seconds += len(self._batches) * max(0.0, now - self._busy_since)
            self._busy_since = now
