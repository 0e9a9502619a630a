"""How others choose their batches, to be driven by the same simulator as our own policy.

Each is the rule of a published scheduler or a well-known server, written anew from its description. They get what ours
gets: the same arrivals, the same machine, the same learned estimate of batch times, the same guard and the same
fallback for what they give up. So only the choice differs. One model, one member, first attempts: no more is compared.
`deferred` and `linger` leave a slot idle while a batch fills, and are asked again at the next arrival, a few
milliseconds later at these loads; the others wait for nothing.
"""

from abc import abstractmethod
from math import inf

from timebound.scheduler import LaneView, Plan, SetAside, Ticket, View


class Rival:
    """A policy that looks at one queue; nothing is refused on arrival, and only `pick` gives tickets up."""

    name = ""
    admits_all = True

    def choose(self, view: View) -> Plan | None:
        """What `pick` says of the tickets that wait, in order of deadline."""
        lane = view.lanes[0]
        waiting = [entry[2] for entry in lane.lane.queues[0].by_deadline]
        dropped: list[Ticket] = []
        tickets = self.pick(view, lane, waiting, dropped)
        return Plan(lane, tickets, self.name, [SetAside(ticket, "dropped") for ticket in dropped])

    def goes_on(self, view: View, level: int, seconds: float, deadline_s: float) -> bool:
        """None of them knows ensembles."""
        return True

    @abstractmethod
    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        """The next batch; what is given up moves from `waiting` to `dropped`."""


def drop_late(view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> None:
    """Whoever would be late even alone."""
    due = view.now + view.margin + lane.seconds(1)
    while waiting and waiting[0].deadline < due:
        dropped.append(waiting.pop(0))


def room_for(view: View, lane: LaneView, head: Ticket) -> int:
    """The largest batch that is in time for this ticket."""
    return lane.largest(view.slack(head.deadline))


class EarliestDeadline(Rival):
    """The earliest deadline first, in the largest batch that it allows; only what is late is dropped."""

    name = "edf"

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        drop_late(view, lane, waiting, dropped)
        if not waiting:
            return []
        return waiting[: max(1, min(room_for(view, lane, waiting[0]), lane.estimate.max_batch))]


class EarlyDrop(Rival):
    """Nexus: a window over the queue; whoever is too tight for a batch of all that wait (or the largest) is dropped."""

    name = "early_drop"

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        drop_late(view, lane, waiting, dropped)
        largest = len(lane.curve.seconds) - 1
        while len(waiting) > largest and room_for(view, lane, waiting[0]) < largest:
            dropped.append(waiting.pop(0))
        return waiting[: max(1, room_for(view, lane, waiting[0]))] if waiting else []


class HalfDeadline(Rival):
    """Like Triton with a timeout: in order of arrival, in the largest batches; half a deadline is the end."""

    name = "timeout"

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        while waiting and view.now - waiting[0].arrived > 0.5 * (waiting[0].deadline - waiting[0].arrived):
            dropped.append(waiting.pop(0))
        return waiting[: lane.estimate.max_batch]


class Linger(Rival):
    """The usual two settings: in order of arrival, once a batch is full or its oldest has waited for 150 ms."""

    name = "linger"
    longest_wait_s = 0.150

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        drop_late(view, lane, waiting, dropped)
        is_full = len(waiting) >= lane.estimate.max_batch
        if not waiting or not (is_full or view.now - waiting[0].arrived >= self.longest_wait_s):
            return []
        return waiting[: lane.estimate.max_batch]


class Deferred(Rival):
    """Symphony: a batch starts as late as its earliest deadline lets it, when no one more would fit, or when full."""

    name = "deferred"

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        drop_late(view, lane, waiting, dropped)
        while waiting and not (room := room_for(view, lane, waiting[0])):
            dropped.append(waiting.pop(0))
        if not waiting:
            return []
        ready = min(len(waiting), lane.estimate.max_batch)
        return waiting[: min(room, ready)] if ready == lane.estimate.max_batch or room <= ready else []


class NewestFirst(Rival):
    """CORK of BentoML: drop the oldest while all that wait, as one batch, would be late for it; then the newest."""

    name = "cork"

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        while len(waiting) > 1 and lane.seconds(len(waiting)) >= view.slack(waiting[0].deadline):
            dropped.append(waiting.pop(0))
        if lane.seconds(1) >= view.slack(waiting[0].deadline):
            dropped.append(waiting.pop(0))
            return []
        return waiting[: -lane.estimate.max_batch - 1 : -1]


class Deft(Rival):
    """DEFT, the study's own: deadline order, early drop where the backlog needs it, batches of one time quantum.

    A quantum is 2 * sqrt(overhead * deadline), at least a sixth of the deadline and at most what two slots can take
    turns at. Tickets that are passed over stand by: spare room in a later batch is theirs, the newest first.
    """

    name = "deft"

    def __init__(self) -> None:
        self._standby: list[Ticket] = []

    def pick(self, view: View, lane: LaneView, waiting: list[Ticket], dropped: list[Ticket]) -> list[Ticket]:
        cap = _quantum(view, lane)
        passed = {id(ticket) for ticket in self._standby}
        waiting = [ticket for ticket in waiting if id(ticket) not in passed]
        want = min(cap, len(waiting))
        room = min(want, room_for(view, lane, waiting[0])) if waiting else 0
        if room < want and (room == 0 or not _survive(view, lane, waiting, room, cap)):
            while waiting:
                want = min(want, len(waiting))
                if room_for(view, lane, waiting[0]) >= want:
                    break
                self._standby.append(waiting.pop(0))
        if not waiting:
            return self._fill(view, lane, [], cap)
        batch = waiting[: min(want, room_for(view, lane, waiting[0]))]
        return self._fill(view, lane, batch, cap) if len(batch) == len(waiting) else batch

    def _fill(self, view: View, lane: LaneView, batch: list[Ticket], cap: int) -> list[Ticket]:
        self._standby = [ticket for ticket in self._standby if ticket.is_wanted]
        tightest = batch[0].deadline if batch else inf
        for ticket in self._standby[:-33:-1]:
            if len(batch) < cap:
                tightest = min(tightest, ticket.deadline)
                if lane.largest(view.slack(tightest)) > len(batch):
                    batch.append(ticket)
                    self._standby.remove(ticket)
                else:
                    tightest = batch[0].deadline if batch else inf
        return batch


def _quantum(view: View, lane: LaneView) -> int:
    """The batch that takes one quantum."""
    deadline_s, estimate = lane.deadline_s, lane.estimate
    overhead, per_item = estimate.shape.overhead * lane.unit, max(1e-12, estimate.shape.per_item * lane.unit)
    quantum = max(2.0 * (overhead * deadline_s) ** 0.5, deadline_s / 6)
    quantum = min(quantum, deadline_s / (1 + 1 / view.slots))
    return int(max(1, min(estimate.max_batch, (quantum - overhead) / per_item, 2 * estimate.largest_batch)))


def _survive(view: View, lane: LaneView, waiting: list[Ticket], room: int, cap: int) -> bool:
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


RIVALS: tuple[type[Rival], ...] = (Deft, EarlyDrop, EarliestDeadline, HalfDeadline, NewestFirst, Linger, Deferred)
