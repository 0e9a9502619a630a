"""Tickets that outlived the death of their batch: they run again, apart from the others and in smaller parts.

One of them may be what killed the worker, so parts are as small as time allows: an item that kills is found alone.
"""

from __future__ import annotations

from timebound.scheduler.estimate import Estimate
from timebound.scheduler.ticket import State, Ticket


class Survivors:
    """Parts that wait for a slot, in the order in which their batches died."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, list[Ticket]]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __len__(self) -> int:
        return sum(len(part) for _, part in self._parts)

    def add(self, model: str, tickets: list[Ticket], size: int) -> None:
        """Have these run again, `size` at a time."""
        for ticket in tickets:
            ticket.losses += 1
            ticket.state = State.QUEUED
        for start in range(0, len(tickets), size):
            self._parts.append((model, tickets[start : start + size]))

    @property
    def first(self) -> tuple[str, list[Ticket]] | None:
        """The next part that has tickets, which stays."""
        return next((entry for entry in self._parts if entry[1]), None)

    def take(self) -> tuple[str, list[Ticket]] | None:
        """The next part that has tickets left."""
        while self._parts:
            model, part = self._parts.pop(0)
            if part:
                return model, part
        return None

    def remove(self, ticket: Ticket) -> None:
        """It need not run any more."""
        for _, part in self._parts:
            if ticket in part:
                part.remove(ticket)
        ticket.state = State.OUT

    def remove_model(self, model: str) -> list[Ticket]:
        """Those of one model; they are out."""
        gone = [ticket for name, part in self._parts if name == model for ticket in part]
        self._parts = [entry for entry in self._parts if entry[0] != model]
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
