"""Which requests run next, how many together, and why.

A decision is a function of (queues, now, estimates), all seen through a `View`, and of one memory: since when the
backlog has not fitted. Another policy is another class with `choose` and `goes_on`, and a line in `POLICIES`.

    latest start of a batch   min(deadline) - margin - safe * seconds(batch)
    best batch                the smallest with a rate within 1 % of the best one, of those that take at most 0.4 of
                              the deadline
    backlog fits at a level   for every waiting ticket: (running + work due before it) / slots + safe * its batch
                              ends before its deadline, if everybody gets `level` ensemble members

**Never wait.** A free slot takes what is there; a lone request adds no delay, and batches grow by themselves while
the slots are busy. **Everything fits:** order of deadline, equal deadlines in order of arrival. **Not everything
fits:** some tickets will get their fallback; the policy chooses which. Three answers, each right at another time:

* *A burst* ends by itself, and who is passed over now is missed when the slots run dry after it. So tickets run in
  order of deadline, in batches as small as the first of them needs, as long as that costs at most 5 % of the rate;
  only who is too tight even for that is passed over. This holds until the backlog has not fitted for a deadline.
* *Behind for longer*, with arrivals still above what the slots can do, rate counts: batches have the very best one,
  and every ticket whose deadline would force a smaller batch is passed over. Passed over is not given up: it stays in
  the queue, and is found there when the load falls.
* *A lasting overload*, when work has arrived at 1.4 times the capacity since the backlog did not fit: the newest first.
  The same number is served (the slots are busy either way), at a fraction of the deadline and with room for wrong
  predictions. But it gives up what waits at that moment, up to a deadline of work, so a smaller overload stays in
  deadline order. It ends as soon as the last fifth of a deadline was not above capacity.

Simulated by `python benchmarks/policy/scheduler.py`: one model, two slots, deadline 1 s, eight seeds of 40 s that were
not used to choose the constants. In each cell the share of the clairvoyant bound and the median answer over the
deadline:

                         this policy                 deadline order (deft)       newest first (cork)
                         CPU-like     GPU-like       CPU-like     GPU-like       CPU-like     GPU-like
    1.0x                 0.980 (0.59) 0.990 (0.62)    0.975 (0.66) 0.993 (0.57)    0.964 (0.45) 0.972 (0.31)
    1.2x                 0.962 (0.87) 0.967 (0.90)    0.948 (0.92) 0.968 (0.90)    0.941 (0.77) 0.972 (0.30)
    1.5x                 0.972 (0.45) 0.988 (0.28)    0.955 (0.94) 0.979 (0.92)    0.919 (0.84) 0.987 (0.28)
    2.0x                 0.972 (0.44) 0.988 (0.27)    0.956 (0.95) 0.977 (0.93)    0.905 (0.87) 0.987 (0.27)
    3.0x                 0.975 (0.43) 0.989 (0.26)    0.950 (0.96) 0.973 (0.94)    0.885 (0.90) 0.988 (0.26)
    bursts, mean 0.9x    0.956 (0.53) 0.900 (0.47)    0.939 (0.43) 0.907 (0.48)    0.840 (0.30) 0.790 (0.24)

It prints more rivals, among them two that wait for batches to fill, and the error of each difference, and fails if a
figure falls; `benchmarks/policy/ablate.py` prints what each rule is worth. Weak spots: GPU-like bursts, where deadline
order with standby is half a point ahead; and 1.2 times the capacity, GPU-like, where the newest first from the start
is, with by far the earlier answers. Larger batches than ours were tried on a real machine, and gave fewer full answers
in an overload.

**Several lanes.** One lane per model and length of input. Among the lanes the batch with the earliest latest start
goes first, so a rare model or a rare length is served as soon as its turn by deadline comes. Spare room in a batch is
filled from shorter lanes of the same model where padding costs less than a later batch of theirs. In a long overload,
when slack says nothing about need, the lane goes first that had the smallest share of its tickets served since then.

**Much time.** Bulk work, where all who wait have more than eight times their model's deadline left and no model has a
shorter one, has batches of the very best rate, up to 0.64 of the deadline instead of 0.4.

**Ranks.** Priorities matter only when not everything fits: then the best class goes first. Retries come after all
first attempts, because their user has been failed already and the first attempts have not.

**Ensembles** are run member by member. A batch goes on with its next member only while the backlog still fits with as
many members for everybody ("same level"): quality falls evenly before anybody gets a fallback. It must fit with 0.4 of
the deadline to spare, and an ensemble is behind already when one member each does not.

**Steps.** Where a backend runs some sizes only, a batch is padded up to the next. It is cut to the step below where
that has the better rate; the others go first next time.

**Devices.** Slots of one worker may share a device: they are one server. Its next batch is chosen shortly before it is
needed (`device.py`), and from then on as if the device's end were now.

**The estimate may be wrong.** Where nothing fits safely, a slot that would idle tries the ticket with most time left.
An estimate that nothing has renewed for 0.25 s turns nobody away, so a machine that was stalled is found out.

Left out: waiting to fill a batch (a lone request would pay for it), and preemption other than between members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from timebound.scheduler.backlog import MUCH_TIME, Backlog, is_bulk
from timebound.scheduler.load import Overload
from timebound.scheduler.queue import DeadlineQueue, Rank
from timebound.scheduler.served import LaneView, Served
from timebound.scheduler.ticket import SetAside, Ticket
from timebound.scheduler.tight import fill, fits_with_reserve, largest_or_try, long_shot, pass_over

WORTH_SPLITTING_S = 0.001  # waking a second worker costs about a tenth of this
TICK = 1e-6  # seconds; a result that is due at the very moment of the guard would lose the race
# A batch cut down for a tight deadline must still run at this share of the rate; where overhead dominates, a small
# batch for a few costs the many (worth 15 points for texts of mixed length, GPU-like, 0.7 times capacity, one seed).
LEAST_RATE = 0.7
# The same while not everything fits, but not yet for longer than a burst: who is too tight even for that is passed
# over. Worth 3.4 points in CPU-like bursts; with 0.8 it is 2.3, and GPU-like bursts lose 0.6.
BURST_RATE = 0.95
# Of the deadline: another member runs only if the backlog would be done so early. Without it half of the answers come
# by 0.8 of the deadline instead of 0.45, and 0.01 members more.
MEMBER_RESERVE = 0.4


class Plan(msgspec.Struct, eq=False):
    """A proposed batch, none if it has no tickets; and the tickets to be given up."""

    lane: LaneView
    tickets: list[Ticket]
    reason: str
    drop: Sequence[SetAside] = ()


class Policy(Protocol):
    """What may be exchanged: which batch is next, and whether an ensemble goes on with its next member."""

    admits_all: bool
    """Whether tickets are given up by `choose` only: not on arrival, and not because they would be late."""

    def choose(self, view: View) -> Plan | None:
        """The next batch for a free slot; None if nothing is to be run or given up."""
        ...

    def goes_on(self, view: View, level: int, seconds: float, deadline_s: float) -> bool:
        """May a batch run one more member, so that its tickets have `level`? The view is without that batch.

        It would keep its slot for `seconds`; `deadline_s` is its model's.
        """
        ...


class View:
    """Everything that a decision may look at."""

    def __init__(
        self,
        now: float,
        margin: float,
        *,
        slots: int,
        residuals: list[float],
        start: float,
        models: list[Served],
        lanes: list[LaneView],
        waiting: int,
    ) -> None:
        self.now = now
        self.start = start  # of a batch chosen now: later than now where it waits for a device
        self.margin = margin + TICK
        self.slots = slots or 1
        self.idle = max(1, slots - len(residuals))
        self.residuals = residuals  # predicted seconds left of each running stage
        self.models = models
        self.lanes = lanes  # those with tickets
        self.waiting = waiting  # tickets, in all lanes
        self._fits: bool | None = None

    def due(self, lane: LaneView, batch: int) -> float:
        """The earliest deadline that a batch started now safely meets."""
        return self.start + self.margin + lane.safe * lane.seconds(batch)

    def slack(self, ticket_deadline: float) -> float:
        return ticket_deadline - self.margin - self.start

    def allowed_s(self, deadline_s: float) -> float:
        """This, or the time that the most urgent of those who wait gave themselves from the start, if that is less."""
        heads = [queue.by_deadline.first[2] for lane in self.lanes for queue in lane.firsts()]
        return min([deadline_s, *(head.deadline - head.arrived for head in heads)])

    @property
    def fits(self) -> bool:
        """Does the whole backlog of first attempts fit, with one member each?"""
        if self._fits is None:
            self._fits = self._fits_easily() or self.backlog_fits(1)
        return self._fits

    def _fits_easily(self) -> bool:
        """The usual case in a few steps: one queue, and its last ticket would be done before the first is due."""
        if len(self.lanes) != 1 or len(queues := self.lanes[0].firsts()) != 1:
            return False
        lane, queue = self.lanes[0], queues[0].by_deadline
        work_s = sum(self.residuals) + queue.count * (lane.curve.seconds[1] * lane.unit) / self.slots
        return work_s + lane.safe * lane.seconds(min(lane.cap, queue.count)) <= self.slack(queue.first[0])

    def backlog_fits(
        self, level: int, mine_s: float = 0.0, skip: dict[int, int] | None = None, reserve_s: float = 0.0
    ) -> bool:
        """Would every waiting first attempt be in time with `level` members each? More in `Backlog.fits`."""
        backlog = Backlog(self.lanes, self.residuals, self.slots, self.start + self.margin)
        return backlog.fits(level, mine_s, skip, reserve_s)


class _Candidate(msgspec.Struct, eq=False):
    """The best batch of one lane."""

    lane: LaneView
    queue: DeadlineQueue
    tickets: list[Ticket]
    reason: str

    def latest_start(self, view: View) -> float:
        tightest = self.tickets[0].deadline  # they come in order of deadline
        return tightest - view.margin - self.lane.safe * self.lane.seconds(len(self.tickets))

    @property
    def rank(self) -> Rank:
        return self.queue.rank


class DeadlineFirst:
    """Ours, as explained above. It remembers one thing: the overload, from when the backlog did not fit."""

    admits_all = False

    def __init__(self) -> None:
        self._overload: Overload | None = None
        self._is_behind = False  # for longer than a burst, not everything has fitted
        self._is_overloaded = False  # work has long been arriving faster than it can be done

    def choose(self, view: View) -> Plan | None:
        """The next batch for a free slot, or None if nothing that waits can be answered in time."""
        if self._overload is not None:
            self._look(view, self._overload)
        best = self._most_urgent(view, LaneView.firsts) or self._most_urgent(view, LaneView.retries)
        best = best or self._most_urgent(view, LaneView.unwaited)
        if best is None:
            return _long_shot(view)
        if len(best.tickets) == best.queue.by_deadline.count < view.waiting:
            fill(view, best.lane, best.tickets, best.queue)
        if len(best.tickets) == view.waiting and not self._is_overloaded:
            self._overload, self._is_behind = None, False
        elif self._overload is None and not (view.fits and fits_with_reserve(view, MEMBER_RESERVE)):
            self._overload = Overload(view.models, view.now)
        if best.lane.curve.cuts is not None:
            del best.tickets[best.lane.curve.cuts[len(best.tickets)] :]
        return Plan(best.lane, best.tickets, best.reason)

    def goes_on(self, view: View, level: int, seconds: float, deadline_s: float) -> bool:
        """Only while everybody who waits would get as many members."""
        if self._overload is not None:
            self._look(view, self._overload)
        if self._is_overloaded:
            return False
        return view.backlog_fits(level, seconds, reserve_s=MEMBER_RESERVE * view.allowed_s(deadline_s))

    def _look(self, view: View, overload: Overload) -> None:
        self._is_behind, self._is_overloaded = overload.look(view.models, view.slots, view.now)

    def _most_urgent(self, view: View, usable: Callable[[LaneView], list[DeadlineQueue]]) -> _Candidate | None:
        found = []
        for lane in view.lanes:
            queues = usable(lane)
            if queues and (candidate := self._best_of(view, lane, queues)):
                found.append(candidate)
        if len(found) < 2:
            return found[0] if found else None
        if self._is_overloaded and (overload := self._overload) is not None:
            return min(found, key=lambda each: (each.rank, overload.share(each.lane.lane)))
        if len({each.rank for each in found}) > 1 and not view.fits:
            return min(found, key=lambda each: (each.rank, each.latest_start(view)))
        return min(found, key=lambda each: each.latest_start(view))

    def _best_of(self, view: View, lane: LaneView, queues: list[DeadlineQueue]) -> _Candidate | None:
        """The best batch of one lane; `queues` are its ranks that may be used, best first."""
        if len(queues) > 1 and view.fits:
            queues = sorted(queues, key=lambda queue: queue.by_deadline.first[0])
        for queue in queues:
            tickets, reason = self._pick(view, lane, queue)
            if tickets:
                return _Candidate(lane, queue, tickets, reason)
        return None

    def _pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> tuple[list[Ticket], str]:
        share = count = queue.by_deadline.count
        if view.idle > 1 and lane.seconds(min(count, lane.cap)) > WORTH_SPLITTING_S:
            share = -(-count // view.idle)  # several idle slots split what waits
        slack = view.slack(queue.by_deadline.first[0])
        want = min(lane.curve.fastest if self._is_behind else lane.cap, share)
        if slack > MUCH_TIME * lane.deadline_s and not self._is_behind and is_bulk(view, lane):
            want = min(lane.curve.bulk, share)
        room = min(want, lane.largest(slack))
        if room == count:
            return queue.slice(0, count), "all_waiting"
        if self._is_overloaded and (newest := queue.newest(want, view.due(lane, want))):
            return newest, "newest_first"
        if room == want:
            return largest_or_try(view, lane, queue, want, share)
        # The head is too tight for the batch that the backlog needs.
        is_worth_it = room and room / lane.seconds(room) >= LEAST_RATE * want / lane.seconds(want)
        if is_worth_it and view.backlog_fits(1, lane.seconds(room), {id(queue): room}):
            return queue.slice(0, room), "tight_deadline"
        return pass_over(view, lane, queue, want, 1.0 if self._is_behind else BURST_RATE)


def _long_shot(view: View) -> Plan | None:
    found = long_shot(view)
    return None if found is None else Plan(found[0], [found[1]], "long_shot")
