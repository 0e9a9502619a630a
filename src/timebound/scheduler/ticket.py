"""The nouns of the scheduler: a ticket waits, a batch runs, and every decision carries its reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import msgspec


class State(enum.Enum):
    """Where a ticket is."""

    OUT = "out"  # not yet offered, set aside, or finished
    QUEUED = "queued"
    RUNNING = "running"


@dataclass(slots=True, frozen=True)
class ModelSpec:
    """What the scheduler must know about a model. Times in seconds."""

    name: str
    deadline_s: float
    members: int = 1  # > 1: an anytime ensemble, run one member after another
    max_batch: int = 64  # what memory allows
    can_fallback: bool = True  # decides only how a refusal is worded
    is_parallel: bool = False  # members may run side by side on idle cores
    max_queue: int = 10_000  # tickets; the bound in seconds of work is derived from the deadline


class Ticket(msgspec.Struct, eq=False):
    """One waiting request. Two tickets are equal only if they are the same object.

    `deadline` and `arrived` are points on the monotonic clock. `size` is in the model's own unit (for example
    tokens); a batch is padded to its largest. A higher `priority` matters more. `attempt` above 1 ranks behind
    every first attempt.
    """

    seq: int
    model: str
    deadline: float
    arrived: float
    size: float = 1.0
    priority: int = 0
    attempt: int = 1
    payload: Any = None
    members_done: int = 0
    losses: int = 0  # batches that died under this ticket
    is_suspect: bool = False  # it may be what killed a worker: it runs apart, alone in a worker
    state: State = State.OUT
    waiting: bool = True  # somebody still wants the answer
    abandoned: bool = False  # its client has gone; kept for a retry
    lane: Any = None  # where it waits; owned by Lane, as its place is
    place: Any = None  # the queue of the lane that holds it
    bytes: int = 0  # of its body; a batch is one frame, and a frame must fit into memory


@dataclass(slots=True, frozen=True)
class Verdict:
    """A ticket that was not queued: answer it now. `reason` is a stable code."""

    action: str  # "fallback" or "refuse"
    reason: str  # "deadline_unreachable", "queue_full", "no_slots"
    retry_after_s: float


@dataclass(slots=True, frozen=True)
class SetAside:
    """A queued ticket that the policy gave up on. `reason` is a stable code: "too_late", "overloaded"."""

    ticket: Ticket
    reason: str


class Batch(msgspec.Struct, eq=False):
    """Tickets that run together on one slot, and why these."""

    id: int
    model: str
    tickets: list[Ticket]
    reason: str
    size: float  # every item is padded to this
    started: float
    predicted_s: float  # all members
    latest_end: float  # after this point the first ticket is late
    busy: int  # slots in use once this one started
    members_done: int = 0
    stage_started: float = 0.0
    stage_end: float = 0.0  # predicted
    busy_mark: float = 0.0  # integral of busy slots when the stage began
    closed: bool = False
    inferred: int | None = None  # how many of its items the model really worked on; None: all
    is_alone: bool = False  # nothing else ran or waited: its members may use the idle cores

    def __len__(self) -> int:
        return len(self.tickets)


@dataclass(slots=True, frozen=True)
class Step:
    """What happens after a member: `leave` are answered now with what they have, `go` says that the rest go on."""

    go: bool
    leave: list[Ticket]
    stay: list[Ticket]
    reason: str


def within_bytes(tickets: list[Ticket], most: float) -> list[Ticket]:
    """The first of these, in their order, whose bodies together stay within `most` bytes; one in any case."""
    total = 0
    for place, ticket in enumerate(tickets):
        total += ticket.bytes
        if total > most and place:
            return tickets[:place]
    return tickets
