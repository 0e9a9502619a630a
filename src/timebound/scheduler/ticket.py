"""What the scheduler handles: a waiting request, a batch of them, and what it knows of a model."""

from __future__ import annotations

from typing import Any

import msgspec


class Ticket(msgspec.Struct, eq=False, kw_only=True):
    """One waiting request. `payload` is the caller's and never looked at."""

    seq: int
    model: str
    deadline: float
    arrived: float
    payload: Any = None
    is_gone: bool = False
    """Answered or given up on: skip it wherever it turns up."""
    is_queued: bool = False
    dispatches: int = 0


class Batch(msgspec.Struct, eq=False, kw_only=True):
    """Tickets to compute together, and why they were released now at this size."""

    id: int
    model: str
    tickets: list[Ticket]
    reason: str
    predicted_s: float
    started: float


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler must know of a model before it has seen it run."""

    name: str
    deadline_s: float
    max_batch: int = 64
    first_guess_s: float = 0.010
    """Seconds one lone item took at warm-up."""
