"""What follows when a worker dies, hangs or runs out of memory. A plain request enters nothing of this.

Tickets that outlive the death of their batch run again, apart from the others and in smaller parts. One of them may be
what killed the worker, so parts are as small as time allows: an item that kills is found alone.
"""

from __future__ import annotations

from timebound.scheduler.estimate import Estimate
from timebound.scheduler.served import Served
from timebound.scheduler.ticket import Batch, Phase, Ticket

SUSPECT_SHARE = 0.5  # of the time it has left that a lone suspect may run: one that is only slow is not to be blamed
TRIAL_SHARE = 0.25  # of the time suspects have left: their worker does nothing else while they run
HANG_FACTOR = 3.0  # times the longest that a batch should take, or lately took
HANG_FLOOR_S = 0.5  # a short pause of the machine is no hang: a new worker would take longer than that
FIRST_HANG_S = 30.0  # while hardly anything is known of a model; its first batches may load or compile something
FIRST_BATCHES = 4


class Survivors:
    """Parts that wait for a slot, in the order in which their batches died."""

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
    if served.estimate.observations - served.trusted_from < FIRST_BATCHES:
        return max(FIRST_HANG_S, 10 * deadline_s)
    slow_s = max(served.estimate.safe * batch.predicted_s, served.slowest_s)
    limit_s = HANG_FACTOR * slow_s + max(HANG_FLOOR_S, 0.1 * deadline_s)
    if len(batch.tickets) == 1 and batch.tickets[0].is_suspect:
        return max(limit_s, SUSPECT_SHARE * (batch.latest_end - batch.started))
    return limit_s


def smaller_batches(served: Served, items: int, now: float, *, is_certain: bool) -> int | None:
    """A batch of so many items was too large for the memory; the new limit on its model's batches.

    If that is only likely (its worker was killed), None and no change unless the batch was a large one.
    """
    if not is_certain and (items == 1 or 2 * items <= served.estimate.max_batch):
        return None
    return served.shrink(items, now)
