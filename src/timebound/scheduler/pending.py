"""A request in the gateway: its ticket, the attempts that wait for it, and the best answer so far."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from timebound.scheduler.ticket import Ticket
from timebound.types import Deliver, ModelInfo, Quality, Request, Result


class Attempt(msgspec.Struct, eq=False):
    """One client waiting for a request; the first asked for it, later ones joined."""

    number: int
    request: Request
    deliver: Deliver
    pending: Pending
    has_joined: bool = False
    guard_at: float = inf
    """When it is given what there is."""
    is_last_chance: bool = False
    """Its fallback has been asked for; the next time the guard fires there is nothing left but an error."""


class PendingTicket(Ticket):
    """The ticket of a request in the gateway."""

    payload: Any = None


def pending_of(ticket: Ticket) -> Any:
    """What the gateway knows of a ticket; None if nothing is left of it."""
    assert isinstance(ticket, PendingTicket)
    return ticket.payload


class Pending(msgspec.Struct, eq=False):
    """An accepted request until nobody waits for it and nothing runs for it."""

    info: ModelInfo
    ticket: PendingTicket
    body: bytes
    key: tuple[str, str] | None
    attempts: list[Attempt]
    fingerprint: bytes = b""
    is_claimed: bool = False
    """Whether this gateway computes it on behalf of the key; then the store must be told what came of it."""
    is_elsewhere: bool = False
    """Whether another gateway computes it."""
    is_copy: bool = False
    """Whether its answer is only compared with another's."""
    kept: Quality | None = None
    """What the store has been given of it."""
    is_offered: bool = False
    """Whether the scheduler has seen it; before, its size is asked for."""
    best: Result | None = None
    """The answer of the members that are done, to be given if time runs out."""
    is_falling: bool = False
    """Given up by the policy: its fallback has been asked for."""
    hold: Any = None
    """See `Request.hold`: the body may outlive its clients, while a retry may come."""

    @property
    def wants_votes(self) -> bool:
        """Whether anyone who waits asked for the members' own answers."""
        for attempt in self.attempts:  # noqa: SIM110 - asked once per request; any() takes three times as long
            if attempt.request.wants_votes:
                return True
        return False
