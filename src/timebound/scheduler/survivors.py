"""What follows when a worker dies, hangs or runs out of memory. A plain request enters nothing of this.

Tickets that outlive the death of their batch run again, apart from the others and in smaller parts. One of them may be
what killed the worker, so parts are as small as time allows: an item that kills is found alone.
"""

from __future__ import annotations

from math import inf

from timebound.scheduler.estimate import ENOUGH_TRIES, STRAGGLER, Estimate
from timebound.scheduler.served import Served
from timebound.scheduler.ticket import Batch, Phase, SetAside, Ticket, Verdict

# Of the time they have left that a batch may run: who is only slow is not to be blamed, and if it hangs they need the
# rest. The parts of suspects are made so that all of them fit into it, for their worker does nothing else meanwhile.
SUSPECT_SHARE = 0.5
HANG_FACTOR = 3.0  # times the longest that a batch should take, or lately took
HANG_FLOOR_S = 0.5  # a short pause of the machine is no hang: a new worker would take longer than that
LONGEST_HANG_S = 60.0  # or the model's deadline if that is longer: more time has no batch that is slower than any other
MOST_SUSPECTS = 64  # parts that wait to run alone: they are taken one by one, and by one worker
SUSPECT_AFTER_S = 1.0  # when one more may come
GROW_AFTER_S = 60.0  # without want of memory, until batches of twice the size are allowed


class Survivors:
    """Parts that wait for a slot, in the order in which their batches died."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[tuple[str, list[Ticket]]] = []

    def __len__(self) -> int:
        return sum(len(part) for _, part in self.parts)

    def add(self, model: str, tickets: list[Ticket], size: int) -> None:
        """Have these run again, `size` at a time."""
        for ticket in tickets:
            ticket.losses += 1
            ticket.phase = Phase.QUEUED
        for start in range(0, len(tickets), size):
            self.parts.append((model, tickets[start : start + size]))

    @property
    def first(self) -> tuple[str, list[Ticket]] | None:
        """The next part that has tickets, which stays."""
        return next((entry for entry in self.parts if entry[1]), None)

    def take(self) -> tuple[str, list[Ticket]] | None:
        """The next part that has tickets left."""
        while self.parts:
            model, part = self.parts.pop(0)
            if part:
                return model, part
        return None

    def remove(self, ticket: Ticket) -> None:
        """It need not run any more."""
        for _, part in self.parts:
            if ticket in part:
                part.remove(ticket)
        ticket.phase = Phase.ACCEPTED

    def remove_model(self, model: str) -> list[Ticket]:
        """Those of one model; they are let go."""
        gone = [ticket for name, part in self.parts if name == model for ticket in part]
        for ticket in gone:
            ticket.phase = Phase.ACCEPTED
        self.parts = [entry for entry in self.parts if entry[0] != model]
        return gone


class Trouble:
    """Who runs again after a loss: survivors with the others, suspects in a worker of their own."""

    __slots__ = ("survivors", "suspects")

    def __init__(self) -> None:
        self.survivors = Survivors()
        self.suspects = Survivors()

    def lost(self, served: Served, batch: Batch, start: float, slots: int, guilty: Ticket | None) -> None:
        """This batch has died; who is still wanted and not guilty runs again, from `start` on."""
        live = [ticket for ticket in batch.tickets if ticket.is_wanted and ticket is not guilty]
        if (batch.is_first or batch.may_stall) and start - batch.started > hang_limit_s(served, batch):
            served.first_hang_s *= 2.0  # or a first time that takes so long would be killed again and again
            served.first_times.append(2.0 / HANG_FACTOR * (start - batch.started))
        suspects = [ticket for ticket in live if ticket.is_suspect]
        self.suspects.add(batch.model, suspects, part_size(served.estimate, suspects, start, 1, SUSPECT_SHARE))
        others = [ticket for ticket in live if not ticket.is_suspect]
        self.survivors.add(batch.model, others, part_size(served.estimate, others, start, slots))

    def offer(self, ticket: Ticket) -> Verdict | None:
        """A new ticket that must run alone; too many of them would take too long to look through."""
        if len(self.suspects.parts) >= MOST_SUSPECTS:
            return Verdict("overloaded", SUSPECT_AFTER_S)
        self.suspects.add(ticket.model, [ticket], 1)
        return None

    def remove(self, ticket: Ticket) -> None:
        """It need not run any more."""
        (self.suspects if ticket.is_suspect else self.survivors).remove(ticket)

    def remove_model(self, model: str) -> list[Ticket]:
        """Those of one model; they are let go."""
        return self.survivors.remove_model(model) + self.suspects.remove_model(model)

    def can_wait(self, models: dict[str, Served], start: float, least_s: float, *, is_needed: bool) -> bool:
        """Whether the suspects whose turn it is can be in time if they start a little later, and somebody needs that.

        Where workers are lost again and again, they wait in any case: none that others need is risked.
        """
        first = self.suspects.first
        if first is None or first[0] not in models:
            return False
        model, tickets = first
        if any(ticket.can_wait for ticket in tickets):
            return True
        estimate = models[model].estimate
        needs_s = estimate.safe * estimate.predict(len(tickets), max(t.size for t in tickets))
        return is_needed and start + max(least_s, needs_s) < min(ticket.deadline for ticket in tickets)


def next_part(
    survivors: Survivors, models: dict[str, Served], start: float, aside: list[SetAside]
) -> tuple[Served, list[Ticket]] | None:
    """The next part that can be in time; who cannot is set aside, as is who has no model any more."""
    while (part := survivors.take()) is not None:
        model, tickets = part
        served = models.get(model)
        due = inf  # it was removed while its batch ran
        if served is not None:
            due = start + served.estimate.predict(len(tickets), max(t.size for t in tickets))
        for ticket in [ticket for ticket in tickets if ticket.deadline < due]:
            tickets.remove(ticket)
            ticket.phase = Phase.ACCEPTED
            aside.append(SetAside(ticket, "too_late" if served is not None else "removed"))
        if served is not None and tickets:
            return served, tickets
    return None


def part_size(estimate: Estimate, tickets: list[Ticket], now: float, slots: int, share: float = 1.0) -> int:
    """How many survivors may run together: one if that takes no more than this share of the time they have left."""
    if not tickets:
        return 1
    size = max(ticket.size for ticket in tickets)
    slack = share * (max(ticket.deadline for ticket in tickets) - now)
    part = 1
    while part < len(tickets):
        seconds = estimate.safe * estimate.predict(part, size, 0, slots)
        if -(-len(tickets) // part) * seconds / max(1, slots) <= slack:
            break
        part *= 2
    return part


def hang_limit_s(served: Served, batch: Batch) -> float:
    """A batch that runs longer than this has hung.

    It may take a share of the time that those have who asked for it, for they are to run again if it hangs. A suspect
    alone may take all of it, and a batch whose like its worker never ran much more. Never less than batches were seen
    to need, and not for ever: others need the worker.
    """
    deadline_s = served.spec.deadline_s
    left_s = max([ticket.deadline for ticket in batch.tickets], default=0.0) - batch.started
    is_trial = len(batch.tickets) == 1 and batch.tickets[0].is_suspect
    allowed_s = max(left_s, deadline_s) if is_trial else SUSPECT_SHARE * left_s
    if batch.may_stall or (
        batch.is_first and not (is_trial and batch.size <= 1.0)
    ):  # one item has run in every worker, at its warm-up
        allowed_s = max(allowed_s, first_hang_limit_s(served))
    # More above its prediction than a straggler shows that the prediction is wrong; `slowest_s` tells the truth then.
    slow_s = max(min(served.estimate.safe, STRAGGLER) * batch.predicted_s, served.slowest_s)
    return max(HANG_FACTOR * slow_s + HANG_FLOOR_S, min(allowed_s, max(LONGEST_HANG_S, deadline_s)))


def first_hang_limit_s(served: Served) -> float:
    """How long a batch may take whose like its worker never ran: long, unless such first times were quick elsewhere."""
    times = served.first_times
    if len(times) < ENOUGH_TRIES:
        return served.first_hang_s
    return min(served.first_hang_s, max(served.spec.deadline_s, HANG_FACTOR * max(times) + HANG_FLOOR_S))


def short_of_memory(served: Served, items: int, now: float, *, is_certain: bool) -> int | None:
    """A batch of so many items was too large for the memory; half of that is the limit from now on.

    If that is only likely (its worker was killed), None and no change unless the batch was a large one.
    """
    most = served.estimate.max_batch
    if not is_certain and (items == 1 or 2 * items <= most):
        return None
    _limit(served, max(1, min(items, most) // 2))
    served.grows_at = now + GROW_AFTER_S
    return served.estimate.max_batch


def grow(served: Served, now: float) -> None:
    """A while has passed without such trouble: twice as many, up to what the model allows."""
    _limit(served, min(2 * served.estimate.max_batch, served.spec.max_batch))
    served.grows_at = now + GROW_AFTER_S if served.estimate.max_batch < served.spec.max_batch else inf


def _limit(served: Served, batch: int) -> None:
    spec = served.spec
    sizes = tuple(size for size in spec.batch_sizes if size <= batch) or spec.batch_sizes[:1]
    estimate = served.estimate
    estimate.max_batch, estimate.shape.sizes = min(batch, sizes[-1]) if sizes else batch, sizes
    estimate.forget_shape()
