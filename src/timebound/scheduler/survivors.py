"""What follows when a worker dies, hangs or runs out of memory. A plain request enters nothing of this.

Tickets that outlive the death of their batch run again, apart from the others and in smaller parts. One of them may be
what killed the worker, so parts are as small as time allows: an item that kills is found alone.
"""

from __future__ import annotations

from math import inf

from timebound.scheduler.estimate import ENOUGH_TRIES, STRAGGLER, Estimate
from timebound.scheduler.served import Served
from timebound.scheduler.ticket import Batch, Phase, SetAside, Ticket

# Of the time they have left that suspects may run: who is only slow is not to be blamed. Their parts are made so that
# all of them fit into it, for their worker does nothing else meanwhile.
SUSPECT_SHARE = 0.5
HANG_FACTOR = 3.0  # times the longest that a batch should take, or lately took
HANG_FLOOR_S = 0.5  # a short pause of the machine is no hang: a new worker would take longer than that
FIRST_HANG_S = 30.0  # while hardly anything is known of a model; its first batches may load or compile something
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
        suspects = [ticket for ticket in live if ticket.is_suspect]
        self.suspects.add(batch.model, suspects, part_size(served.estimate, suspects, start, 1, SUSPECT_SHARE))
        others = [ticket for ticket in live if not ticket.is_suspect]
        self.survivors.add(batch.model, others, part_size(served.estimate, others, start, slots))

    def remove(self, ticket: Ticket) -> None:
        """It need not run any more."""
        (self.suspects if ticket.is_suspect else self.survivors).remove(ticket)

    def remove_model(self, model: str) -> list[Ticket]:
        """Those of one model; they are let go."""
        return self.survivors.remove_model(model) + self.suspects.remove_model(model)

    def can_wait(self, models: dict[str, Served], start: float, least_s: float) -> bool:
        """Whether the suspects whose turn it is can be in time if they start a little later."""
        first = self.suspects.first
        if first is None or first[0] not in models:
            return False
        model, tickets = first
        estimate = models[model].estimate
        needs_s = estimate.safe * estimate.predict(len(tickets), max(t.size for t in tickets))
        return start + max(least_s, needs_s) < min(ticket.deadline for ticket in tickets)


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
    """A batch that runs longer than this has hung."""
    deadline_s = served.spec.deadline_s
    if served.estimate.observations - served.trusted_from < ENOUGH_TRIES:
        return max(FIRST_HANG_S, 10 * deadline_s)
    # More above its prediction than a straggler shows that the prediction is wrong; `slowest_s` tells the truth then.
    slow_s = max(min(served.estimate.safe, STRAGGLER) * batch.predicted_s, served.slowest_s)
    limit_s = HANG_FACTOR * slow_s + max(HANG_FLOOR_S, 0.1 * deadline_s)
    if len(batch.tickets) == 1 and batch.tickets[0].is_suspect:
        return max(limit_s, SUSPECT_SHARE * (batch.latest_end - batch.started))
    return limit_s


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
    served.estimate.resize(spec.members, min(batch, sizes[-1]) if sizes else batch, sizes)
