"""How others choose their batches, to be driven by the same simulator as our own policy.

Each is the rule of a published scheduler or a well-known server, written anew from its description. They get what ours
gets: the same arrivals, the same machine, the same learned estimate of batch times, the same guard and the same
fallback for what they give up. So only the choice differs. One model, one member, first attempts: no more is compared.
`deferred` and `linger` leave a slot idle while a batch fills, and are asked again at the next arrival, a few
milliseconds later at these loads; the others wait for nothing.
"""

from abc import abstractmethod

from timebound.scheduler import Batch, Scheduler, Ticket
from timebound.scheduler.policy import LaneView, View
from timebound.scheduler.queue import DeadlineQueue


class Rival(Scheduler):
    """Our accounting around another's choice: nothing is refused on arrival, and only `pick` gives tickets up."""

    name = ""

    def offer(self, ticket: Ticket, now: float) -> None:
        del now
        served = self._models[ticket.model]
        served.lane(ticket.size).add(ticket)
        served.queued += 1

    def take(self, now: float) -> Batch | None:
        if len(self._running) >= self._slots:
            return None
        served = next(iter(self._models.values()))
        if not served.queued:
            return None
        view = self.view(now)
        lane = view.lanes[0]
        tickets = self.pick(view, lane, lane.lane.queues[0])
        for ticket in tickets:
            self._unqueue(ticket)
        return self._start(served, tickets, self.name, now) if tickets else None

    @abstractmethod
    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        """The next batch, in the queue; `drop` what is given up."""

    def drop(self, ticket: Ticket) -> None:
        self._set_aside(ticket, "dropped")

    def drop_late(self, view: View, lane: LaneView, queue: DeadlineQueue) -> None:
        """Whoever would be late even alone."""
        for ticket in queue.slice(0, queue.first_due_after(view.now + view.margin + lane.seconds(1))):
            self.drop(ticket)


class EarliestDeadline(Rival):
    """The earliest deadline first, in the largest batch that it allows; only what is late is dropped."""

    name = "edf"

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        self.drop_late(view, lane, queue)
        if not queue:
            return []
        room = lane.largest(view.slack(queue.by_deadline.first[0]))
        return queue.slice(0, max(1, min(room, lane.estimate.max_batch)))


class EarlyDrop(Rival):
    """Nexus: a window over the queue; whoever is too tight for a batch of all that wait (or the largest) is dropped."""

    name = "early_drop"

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        self.drop_late(view, lane, queue)
        while len(queue) > 1:
            want = min(len(queue), len(lane.curve.seconds) - 1)
            if lane.largest(view.slack(queue.by_deadline.first[0])) >= want or len(queue) <= want:
                break
            self.drop(queue.by_deadline.first[2])
        if not queue:
            return []
        return queue.slice(0, max(1, lane.largest(view.slack(queue.by_deadline.first[0]))))


class HalfDeadline(Rival):
    """Like Triton with a timeout: in order of arrival, in the largest batches; half a deadline is the end."""

    name = "timeout"

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        while queue and view.now - queue.oldest.arrived > 0.5 * (queue.oldest.deadline - queue.oldest.arrived):
            self.drop(queue.oldest)
        return queue.slice(0, lane.estimate.max_batch)


class Linger(Rival):
    """The usual two settings: in order of arrival, once a batch is full or its oldest has waited for 150 ms."""

    name = "linger"
    longest_wait_s = 0.150

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        self.drop_late(view, lane, queue)
        is_full = len(queue) >= lane.estimate.max_batch
        if not queue or not (is_full or view.now - queue.oldest.arrived >= self.longest_wait_s):
            return []
        return queue.slice(0, lane.estimate.max_batch)


class Deferred(Rival):
    """Symphony: a batch starts as late as its earliest deadline lets it, when no one more would fit, or when full."""

    name = "deferred"

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        self.drop_late(view, lane, queue)
        while queue and not (room := lane.largest(view.slack(queue.by_deadline.first[0]))):
            self.drop(queue.by_deadline.first[2])
        if not queue:
            return []
        ready = min(len(queue), lane.estimate.max_batch)
        return queue.slice(0, min(room, ready)) if ready == lane.estimate.max_batch or room <= ready else []


class NewestFirst(Rival):
    """CORK of BentoML: drop the oldest while all that wait, as one batch, would be late for it; then the newest."""

    name = "cork"

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        while len(queue) > 1 and lane.seconds(len(queue)) >= view.slack(queue.by_deadline.first[0]):
            self.drop(queue.by_deadline.first[2])
        if lane.seconds(1) >= view.slack(queue.by_deadline.first[0]):
            self.drop(queue.by_deadline.first[2])
            return []
        return list(reversed(queue.by_arrival.values()))[: lane.estimate.max_batch]


class Deft(Rival):
    """DEFT, the study's own: deadline order, early drop where the backlog needs it, batches of one time quantum.

    A quantum is 2 * sqrt(overhead * deadline), at least a sixth of the deadline and at most what two slots can take
    turns at. Tickets that are passed over stand by: spare room in a later batch is theirs, the newest first.
    """

    name = "deft"

    def __init__(self, margin_s: float = 0.010) -> None:
        super().__init__(margin_s)
        self._standby: list[Ticket] = []

    def pick(self, view: View, lane: LaneView, queue: DeadlineQueue) -> list[Ticket]:
        cap = self._cap(lane)
        passed = {id(ticket) for ticket in self._standby}
        waiting = [entry[2] for entry in queue.by_deadline if id(entry[2]) not in passed]
        want = min(cap, len(waiting))
        room = min(want, lane.largest(view.slack(waiting[0].deadline))) if waiting else 0
        if room < want and (room == 0 or not self._survive(view, lane, waiting, room, cap)):
            while waiting:
                want = min(want, len(waiting))
                if lane.largest(view.slack(waiting[0].deadline)) >= want:
                    break
                self._standby.append(waiting.pop(0))
        if not waiting:
            return self._fill(view, lane, [], cap)
        batch = waiting[: min(want, lane.largest(view.slack(waiting[0].deadline)))]
        return self._fill(view, lane, batch, cap) if len(batch) == len(waiting) else batch

    def _cap(self, lane: LaneView) -> int:
        served = self._models[lane.lane.model]
        deadline_s, estimate = served.spec.deadline_s, served.estimate
        overhead, per_item = estimate.overhead * lane.unit, max(1e-12, estimate.per_item * lane.unit)
        quantum = max(2.0 * (overhead * deadline_s) ** 0.5, deadline_s / 6)
        quantum = min(quantum, deadline_s / (1 + 1 / self._slots))
        return int(max(1, min(estimate.max_batch, (quantum - overhead) / per_item, 2 * estimate.largest_batch)))

    def _survive(self, view: View, lane: LaneView, waiting: list[Ticket], room: int, cap: int) -> bool:
        """Would all the others be in time after a batch of `room`?"""
        busy = [*view.residuals, lane.seconds(room)]
        free_in = min(busy) if len(busy) >= view.slots else 0.0
        rest = waiting[room:]
        place = cap - 1
        while rest:
            place = min(place, len(rest) - 1)
            work = max(0, place + 1 - cap) * lane.seconds(cap) / cap
            own = lane.safe * lane.seconds(min(place + 1, cap))
            if max(free_in, (sum(busy) + work) / view.slots) + own > view.slack(rest[place].deadline):
                return False
            if place == len(rest) - 1:
                break
            place += cap
        return True

    def _fill(self, view: View, lane: LaneView, batch: list[Ticket], cap: int) -> list[Ticket]:
        self._standby = [ticket for ticket in self._standby if ticket.waiting]
        tightest = batch[0].deadline if batch else float("inf")
        for ticket in self._standby[:-33:-1]:
            if len(batch) < cap:
                tightest = min(tightest, ticket.deadline)
                if lane.largest(view.slack(tightest)) > len(batch):
                    batch.append(ticket)
                    self._standby.remove(ticket)
                else:
                    tightest = batch[0].deadline if batch else float("inf")
        return batch


RIVALS: tuple[type[Rival], ...] = (Deft, EarlyDrop, EarliestDeadline, HalfDeadline, NewestFirst, Linger, Deferred)
