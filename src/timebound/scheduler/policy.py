"""Which requests run next, how many together, and why.

A decision is a function of (queues, now, estimates), all seen through a `View`; nothing here changes anything.

    latest start of a batch   min(deadline) - margin - safe * seconds(batch)
    best batch                the smallest with a rate within 1 % of the best one (unless that has hardly more items),
                              of those that take at most 0.4 of the deadline
    backlog fits at a level   for every waiting ticket: (running + work due before it) / slots + safe * its batch
                              ends before its deadline, if everybody gets `level` ensemble members

**Never wait.** A free slot takes what is there; a lone request adds no delay, and batches grow by themselves while
the slots are busy. **Everything fits:** order of deadline, equal deadlines in order of arrival. **Not everything
fits:** some tickets will get their fallback; the policy chooses which, so that the slots do useful work at the best
rate. Two answers are known, and each is right at another time:

* *Deadline order with early drop.* Tickets whose deadline would force a batch too small for the backlog are passed
  over. It keeps what can be kept longest, so that nothing is lost when the load falls. But while the load stays
  too high everybody who is served has waited almost the whole deadline, and each slow batch makes answers useless.
* *Newest first.* The same number is served while the load stays too high (the slots are busy either way), at a
  fraction of the deadline and with room for wrong predictions; batches can have their best size because slack is
  large. But when the load falls, those left behind are old, and the slots run dry too early.

So time and the arrival rate decide. Turning to the newest gives up what waits at that moment, once, at most one
deadline of work; so it is done only after the backlog has not fitted for a deadline, while work has arrived since then
at 1.3 times what the slots can do and two standard deviations more (until 1.1 times), and only as long as the last
fifth of a deadline was above capacity too. A smaller overload stays in deadline order: there a turn costs more than it
brings. An ensemble turns earlier, when one member each just fits: its backlog would delay full answers afterwards.
After a deadline behind, batches have the very best rate, and tickets are passed over for it too. Those passed over
stay in the queue while they have time for two more batches, and are then given up together. When the load falls,
deadline order takes over at once and finds the others there.

Simulated by `python benchmarks/policy/scheduler.py`: one model, two slots, deadline 1 s, eight seeds of 40 s that were
not used to choose the constants. In each cell the share of the clairvoyant bound and the median answer over the
deadline:

                         this policy                 deadline order (deft)       newest first (cork)
                         CPU-like     GPU-like       CPU-like     GPU-like       CPU-like     GPU-like
    1.0x                 0.982 (0.60) 0.992 (0.57)    0.975 (0.65) 0.991 (0.57)    0.967 (0.44) 0.972 (0.31)
    1.2x                 0.958 (0.80) 0.968 (0.90)    0.949 (0.92) 0.968 (0.90)    0.939 (0.76) 0.972 (0.30)
    1.5x                 0.971 (0.47) 0.986 (0.28)    0.956 (0.94) 0.979 (0.92)    0.922 (0.83) 0.987 (0.28)
    2.0x                 0.971 (0.44) 0.987 (0.27)    0.955 (0.95) 0.977 (0.93)    0.907 (0.87) 0.987 (0.27)
    3.0x                 0.974 (0.41) 0.987 (0.26)    0.950 (0.96) 0.973 (0.94)    0.887 (0.90) 0.988 (0.26)
    bursts, mean 0.9x    0.917 (0.45) 0.896 (0.46)    0.943 (0.44) 0.900 (0.46)    0.843 (0.30) 0.789 (0.24)

It prints more rivals, among them two that wait for batches to fill, and the error of each difference. Weak spots:
CPU-like bursts, where deadline order alone does better; and 1.2 times the capacity, where rules with batches of the
whole deadline (CPU-like) or with the newest first from the start (GPU-like) may be half a point ahead. Larger batches
than ours were tried on a real machine, and gave fewer full answers in an overload.

**Several lanes.** One lane per model and length of input. Among the lanes the batch with the earliest latest start
goes first, so a rare model or a rare length is served as soon as its turn by deadline comes. Spare room in a batch is
filled from shorter lanes of the same model where padding costs less than a batch of their own. In a lasting overload,
when slack says nothing about need, the lane goes first that had the smallest share of its tickets served lately.

**Much time.** Where all who wait have more than eight times their model's deadline left, and no model has a shorter
one, batches have the very best rate and may take 0.64 of the deadline instead of 0.4: more throughput for bulk work,
as in the closed loop of `benchmarks/peers`. Who comes meanwhile with the usual deadline still has time for a batch;
`tests/scheduler/test_goodput.py` simulates that. Larger batches than these are not tried then.

**Ranks.** Priorities matter only when not everything fits: then the best class goes first. Retries come after all
first attempts, because their user has been failed already and the first attempts have not.

**Ensembles** are run member by member. A batch goes on with its next member only while the backlog still fits with as
many members for everybody ("same level"): quality falls evenly before anybody gets a fallback. It must fit with 0.3 of
the deadline to spare, which costs at most 0.07 members and brings the median answer from 0.8 to 0.55 of the deadline.

Left out: waiting to fill a batch (a lone request would pay for it), and preemption other than between members.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from timebound.scheduler.estimate import Curve, Estimate
from timebound.scheduler.load import ServedShare
from timebound.scheduler.queue import RETRY_RANK, DeadlineQueue, Lane
from timebound.scheduler.ticket import Ticket

WORTH_SPLITTING_S = 0.001  # waking a second worker costs about a tenth of this
CHECKPOINTS = 32  # deadlines looked at to see whether the backlog fits, over all lanes
TICK = 1e-6  # seconds; a result that is due at the very moment of the guard would lose the race
RETRIES_FROM = RETRY_RANK // 2
# A batch cut down for a tight deadline must still run at this share of the rate; where overhead dominates, a small
# batch for a few costs the many (worth 15 points for texts of mixed length, GPU-like, 0.7 times capacity, one seed).
LEAST_RATE = 0.7
MUCH_TIME = 8.0  # times the model's deadline
# An ensemble is behind as well when one member for everybody fits with less than this share of the deadline to spare:
# in deadline order such a backlog stays, and delays full answers after the overload. `benchmarks/policy/scheduler.py`:
# after 10 s at 2.85x full quality is back within 0.04 s, without it after 0.28 s; in time meanwhile are 0.985, not
# 0.995.
DEEP_SHARE = 0.4


class LaneView:
    """A lane with its predictions at this moment."""

    __slots__ = ("cap", "curve", "deadline_s", "estimate", "lane", "per_item", "safe", "share", "unit")

    def __init__(
        self, lane: Lane, estimate: Estimate, curve: Curve, *, crowd: float, share: ServedShare, deadline_s: float
    ) -> None:
        self.lane = lane
        self.deadline_s = deadline_s  # the model's own; a request may have given itself more time, or less
        self.estimate = estimate
        self.curve = curve
        self.unit = estimate.first * crowd  # the first member, on this machine, now
        self.safe = estimate.safe
        self.cap = curve.best
        self.per_item = self.unit / curve.best_rate
        self.share = share  # of its tickets that ran, lately

    def seconds(self, batch: int) -> float:
        """The first member on a batch of this many."""
        seconds = self.curve.seconds  # asked several times per decision
        return (seconds[batch] if batch < len(seconds) else self.curve.at(batch)) * self.unit

    def largest(self, slack: float) -> int:
        """The largest batch that safely fits into `slack` seconds."""
        return self.curve.largest(slack / (self.safe * self.unit))

    def work(self, count: int) -> float:
        """Slot seconds for the first member of this many waiting tickets."""
        return count * self.per_item if count >= self.cap else self.seconds(count)

    def level_factor(self, level: int) -> float:
        """How much longer `level` members take than the first."""
        if level == 1:
            return 1.0
        return self.estimate.scale(0, min(level, self.estimate.members)) / self.estimate.first

    def firsts(self) -> list[DeadlineQueue]:
        queues = self.lane.queues
        if not queues or queues[-1].rank < RETRIES_FROM:  # the usual case
            return queues
        return [queue for queue in self.lane.queues if queue.rank < RETRIES_FROM]

    def retries(self) -> list[DeadlineQueue]:
        return [queue for queue in self.lane.queues if queue.rank >= RETRIES_FROM]


class Plan(msgspec.Struct, eq=False):
    """A proposed batch."""

    view: LaneView
    tickets: list[Ticket]
    reason: str
    rank: int
    latest_start: float
    takes_all: bool  # nothing that fits is left in its queue


class View:
    """Everything that a decision may look at."""

    def __init__(
        self,
        now: float,
        margin: float,
        *,
        slots: int,
        residuals: list[float],
        lanes: list[LaneView],
        shortest_s: float,
        is_behind: bool,
        is_overloaded: bool,
    ) -> None:
        self.now = now
        self.margin = margin + TICK
        self.slots = slots or 1
        self.idle = max(1, slots - len(residuals))
        self.residuals = residuals  # predicted seconds left of each running stage
        self.lanes = lanes
        self.is_behind = is_behind  # for longer than a burst, not everything has fitted
        self.is_overloaded = is_overloaded  # work has long been arriving faster than it can be done
        self.shortest_s = shortest_s  # of the deadlines of all models, also of those that nobody waits for
        self._fits: bool | None = None
        self._is_unhurried: bool | None = None

    def due(self, lane: LaneView, batch: int) -> float:
        """The earliest deadline that a batch started now safely meets."""
        return self.now + self.margin + lane.safe * lane.seconds(batch)

    def slack(self, ticket_deadline: float) -> float:
        return ticket_deadline - self.margin - self.now

    @property
    def fits(self) -> bool:
        """Does the whole backlog of first attempts fit, with one member each?"""
        if self._fits is None:
            self._fits = self._fits_easily() or self.backlog_fits(1)
        return self._fits

    @property
    def is_unhurried(self) -> bool:
        """Has everybody who waits far more time left than their models' deadlines?"""
        if self._is_unhurried is None:
            self._is_unhurried = all(
                self.slack(queue.by_deadline.first[0]) > MUCH_TIME * lane.deadline_s
                for lane in self.lanes
                for queue in lane.lane.queues
                if queue
            )
        return self._is_unhurried

    @property
    def is_deep(self) -> bool:
        """Do only ensembles have work waiting, which with one member each fits, but with little time to spare?"""
        if any(lane.estimate.members == 1 for lane in self.lanes):
            return False
        heads = [(lane, queue.by_deadline.first[2]) for lane in self.lanes for queue in lane.firsts() if queue]
        times = [min(lane.deadline_s, head.deadline - head.arrived) for lane, head in heads]
        return bool(times) and not self.backlog_fits(1, reserve_s=DEEP_SHARE * min(times))

    def _fits_easily(self) -> bool:
        """The usual case in a few steps: one queue, and its last ticket would be done before the first is due."""
        if len(self.lanes) != 1 or len(queues := self.lanes[0].firsts()) != 1:
            return False
        lane, queue = self.lanes[0], queues[0].by_deadline
        work_s = sum(self.residuals) + queue.count * lane.seconds(1) / self.slots
        return work_s + lane.safe * lane.seconds(min(lane.cap, queue.count)) <= self.slack(queue.first[0])

    def backlog_fits(
        self, level: int, mine_s: float = 0.0, skip: dict[int, int] | None = None, reserve_s: float = 0.0
    ) -> bool:
        """Would every waiting first attempt be in time with `level` members each?

        `mine_s`: one more slot is busy for so long; `skip` maps a queue (by id) to how many of its first tickets run;
        `reserve_s`: everything must be done so long before its deadline.
        """
        waiting: list[tuple[DeadlineQueue, int, LaneView, float]] = []
        total = 0.0
        for lane in self.lanes:
            factor = lane.level_factor(level)
            for queue in lane.firsts():
                start = skip.get(id(queue), 0) if skip else 0
                if len(queue) > start:
                    waiting.append((queue, start, lane, factor))
                    total += factor * lane.work(len(queue) - start)
        if not waiting:
            return True
        busy_s = sum(self.residuals) + mine_s
        running = len(self.residuals) + (mine_s > 0)
        free_in = 0.0 if running < self.slots else min([*self.residuals, mine_s or inf])
        earliest = min(queue.by_deadline.at(start)[0] for queue, start, _, _ in waiting)
        longest = max(lane.safe * factor * lane.seconds(min(lane.cap, len(q))) for q, _, lane, factor in waiting)
        if max(free_in, (busy_s + total) / self.slots) + longest <= self.slack(earliest) - reserve_s:
            return True
        return all(
            self._in_time(entry, waiting, busy_s + reserve_s * self.slots, free_in + reserve_s) for entry in waiting
        )

    def _in_time(
        self,
        entry: tuple[DeadlineQueue, int, LaneView, float],
        waiting: list[tuple[DeadlineQueue, int, LaneView, float]],
        busy_s: float,
        free_in: float,
    ) -> bool:
        """One queue, at the last ticket of each future batch (of some batches, if there are many)."""
        queue, start, lane, factor = entry
        count, cap = len(queue) - start, lane.cap
        stride = max(cap, count * len(waiting) // CHECKPOINTS)
        position = cap - 1
        while True:
            position = min(position, count - 1)
            deadline = queue.by_deadline.at(start + position)[0]
            work = max(0, position + 1 - cap) * factor * lane.per_item
            for other, other_start, other_lane, other_factor in waiting:
                if other is not queue:
                    ahead = max(0, other.due_by(deadline) - other_start)
                    work += other_factor * other_lane.work(ahead)
            own = lane.safe * factor * lane.seconds(min(position + 1, cap))
            if max(free_in, (busy_s + work) / self.slots) + own > self.slack(deadline):
                return False
            if position == count - 1:
                return True
            position += stride


def choose(view: View) -> Plan | None:
    """The next batch for a free slot, or None if nothing that waits can be answered in time."""
    plan = _most_urgent(view, LaneView.firsts)
    if plan is None:
        plan = _most_urgent(view, LaneView.retries)
    if plan is None:
        return _long_shot(view)
    if plan.takes_all:
        _fill(view, plan)
    return plan


def _most_urgent(view: View, usable: Callable[[LaneView], list[DeadlineQueue]]) -> Plan | None:
    plans = []
    for lane in view.lanes:
        queues = usable(lane)
        if queues and (plan := _plan_lane(view, lane, queues)):
            plans.append(plan)
    if len(plans) < 2:
        return plans[0] if plans else None
    if view.is_overloaded:
        return min(plans, key=lambda plan: (plan.rank, plan.view.share.share(view.now)))
    if len({plan.rank for plan in plans}) > 1 and not view.fits:
        return min(plans, key=lambda plan: (plan.rank, plan.latest_start))
    return min(plans, key=lambda plan: plan.latest_start)


def _plan_lane(view: View, lane: LaneView, queues: list[DeadlineQueue]) -> Plan | None:
    """The best batch of one lane; `queues` are its ranks that may be used, best first."""
    if len(queues) > 1 and view.fits:
        queues = sorted(queues, key=lambda queue: queue.by_deadline.first[0])
    for queue in queues:
        tickets, reason = _pick(view, lane, queue)
        if tickets:
            tightest = tickets[0].deadline  # they come in order of deadline
            latest = tightest - view.margin - lane.safe * lane.seconds(len(tickets))
            return Plan(lane, tickets, reason, queue.rank, latest, len(tickets) == len(queue))
    return None


def _pick(view: View, lane: LaneView, queue: DeadlineQueue) -> tuple[list[Ticket], str]:
    share = count = queue.by_deadline.count
    if view.idle > 1 and lane.seconds(min(count, lane.cap)) > WORTH_SPLITTING_S:
        share = -(-count // view.idle)  # several idle slots split what waits
    head_slack = view.slack(queue.by_deadline.first[0])
    if not view.is_behind and lane.deadline_s <= view.shortest_s and view.is_unhurried:
        want = min(lane.curve.longest, share, lane.largest(head_slack))
        if want:
            return queue.slice(0, want), _reason(want, share, count, "unhurried")
    want = min(lane.curve.fastest if view.is_behind else lane.cap, share)
    room = min(want, lane.largest(head_slack))
    if room == count:
        return queue.slice(0, count), "all_waiting"
    if view.is_overloaded and (newest := queue.newest(want, view.due(lane, want))):
        return newest, "newest_first"
    if room == want:
        return _largest_or_try(lane, queue, want, head_slack, share)
    # The head is too tight for the batch that the backlog needs.
    is_worth_it = room and room / lane.seconds(room) >= LEAST_RATE * want / lane.seconds(want)
    if is_worth_it and view.backlog_fits(1, lane.seconds(room), {id(queue): room}):
        return queue.slice(0, room), "tight_deadline"
    return _pass_over(view, lane, queue, want)


def _reason(want: int, share: int, count: int, otherwise: str) -> str:
    if want == count:
        return "all_waiting"
    return "split" if want == share else otherwise


def _largest_or_try(
    lane: LaneView, queue: DeadlineQueue, want: int, head_slack: float, share: int
) -> tuple[list[Ticket], str]:
    """The batch of the best rate; now and then a larger one, to learn whether it has become better."""
    larger = min(2 * want, len(lane.curve.seconds) - 1)
    if want < larger <= share and lane.estimate.wants_try(larger) and larger <= lane.largest(head_slack):
        return queue.slice(0, larger), "try_larger"
    return queue.slice(0, want), "best_rate" if want >= lane.cap else "split"


def _pass_over(view: View, lane: LaneView, queue: DeadlineQueue, want: int) -> tuple[list[Ticket], str]:
    """The largest batch whose tickets all have time for it; those with less stay behind."""
    while want:
        first = queue.first_due_after(view.due(lane, want))
        left = len(queue) - first
        if left >= want:
            return queue.slice(first, want), "early_drop" if first else "tight_deadline"
        want = min(want - 1, max(left, want // 2))
    return [], ""


def _fill(view: View, plan: Plan) -> None:
    """Spare room goes to lower ranks of the lane, then to shorter lanes where padding is cheaper than waiting."""
    lane = plan.view
    tightest = min(ticket.deadline for ticket in plan.tickets)
    limit = min(lane.cap, lane.largest(view.slack(tightest)))
    due = view.due(lane, limit) if limit > len(plan.tickets) else inf
    for queue in lane.lane.queues:
        room = limit - len(plan.tickets)
        if room > 0 and queue is not plan.tickets[0].place and _may_join(view, queue):
            plan.tickets += queue.slice(queue.first_due_after(due), room)
    for other in view.lanes:
        if other.lane.model != lane.lane.model or other.lane.bucket >= lane.lane.bucket:
            continue
        for queue in other.firsts():
            room = limit - len(plan.tickets)
            alone = min(len(queue), other.cap)
            one_more = lane.seconds(len(plan.tickets) + 1) - lane.seconds(len(plan.tickets))
            if room > 0 and one_more <= other.seconds(alone) / alone:
                plan.tickets += queue.slice(queue.first_due_after(due), room)


def _may_join(view: View, queue: DeadlineQueue) -> bool:
    """Retries ride along only where they push no first attempt over its deadline."""
    return queue.rank < RETRIES_FROM or view.fits


def _long_shot(view: View) -> Plan | None:
    """Nothing fits safely. Rather than idle, try the ticket with most time left if it may well make it."""
    best: Plan | None = None
    for lane in view.lanes:
        for queue in lane.lane.queues:
            deadline, _, ticket = queue.by_deadline.at(queue.first_due_after(queue.by_deadline.last[0]))
            latest = deadline - view.margin - lane.seconds(1)
            is_idle = not view.residuals and view.slack(deadline) > 0.0  # nobody else needs the slot: find out
            if (latest >= view.now or is_idle) and (best is None or latest > best.latest_start):
                best = Plan(lane, [ticket], "long_shot", queue.rank, latest, False)
    return best
