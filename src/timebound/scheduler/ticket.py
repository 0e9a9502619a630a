"""The nouns of the scheduler: a ticket waits, a batch runs, and every decision carries its reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import msgspec


class Phase(enum.Enum):
    """Where a request is. The scheduler itself sets QUEUED, RUNNING, and ACCEPTED when it lets a ticket go."""

    ACCEPTED = "accepted"  # in the gateway, not the scheduler's
    ASKING = "asking"  # the store is asked
    ELSEWHERE = "elsewhere"  # another gateway computes it
    SIZING = "sizing"  # its size is asked for
    QUEUED = "queued"
    RUNNING = "running"
    FALLING = "falling"  # given up; its fallback is asked for
    DONE = "done"


@dataclass(slots=True, frozen=True)
class ModelSpec:
    """What the scheduler must know about a model. Times in seconds."""

    name: str
    deadline_s: float
    members: int = 1  # > 1: an anytime ensemble, run one member after another
    max_batch: int = 64  # what memory allows
    is_parallel: bool = False  # members may run side by side on idle cores
    max_queue: int = 10_000  # tickets; the bound in seconds of work is derived from the deadline
    batch_sizes: tuple[int, ...] = ()  # those the backend runs, rising; a batch is padded up to the next. Empty: all


class Ticket(msgspec.Struct, eq=False):
    """One waiting request; whoever uses the scheduler adds what it needs in a subclass.

    Two tickets are equal only if they are the same object. `deadline` and `arrived` are points on the monotonic clock.
    `size` is in the model's own unit (for example tokens); a batch is padded to its largest. A higher `priority`
    matters more.
    """

    seq: int
    model: str
    deadline: float
    arrived: float
    size: float = 1.0
    priority: int = 0
    is_retry: bool = False  # its user has been failed before, or has gone: it ranks behind every first attempt
    members_done: int = 0
    losses: int = 0  # batches that died under this ticket
    is_kin: bool = False  # it was a suspect from the start, for what it has in common with those that were guilty
    can_wait: bool = False  # it is not run in the last worker that others need, even if its time runs out
    is_suspect: bool = False  # it may be what killed a worker: it runs apart, alone in a worker
    phase: Phase = Phase.ACCEPTED
    is_wanted: bool = True  # somebody still wants the answer
    is_awaited: bool = True  # somebody waits for it; else a retry may come, and everybody who waits goes first
    bytes: int = 0  # of its body; a batch is one frame, and a frame must fit into memory
    lane: Any = None  # where it waits; owned by Lane, as its place is
    place: Any = None  # the queue of the lane that holds it


@dataclass(slots=True, frozen=True)
class Verdict:
    """A ticket that was not queued: answer it now. `reason` is a stable code."""

    reason: str  # "deadline_unreachable", "queue_full"
    retry_after_s: float
    predicted_s: float | None = None  # from now until it would be done


@dataclass(slots=True, frozen=True)
class SetAside:
    """A queued ticket that was given up. `reason` is a stable code: "too_late", "overloaded", "removed"."""

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
    served: Any = None  # the model it was started for, and what was known of its speed then; owned by InFlight
    estimate: Any = None
    is_first: bool = False  # its worker has never run so many items of such a size: that may take far longer, once

    def __len__(self) -> int:
        return len(self.tickets)


@dataclass(slots=True, frozen=True)
class Step:
    """What happens after a member: `leave` are answered now with what they have, `go` says that the rest go on."""

    go: bool
    leave: list[Ticket]
    stay: list[Ticket]
    reason: str
