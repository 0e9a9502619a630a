"""The nouns of the scheduler: a ticket waits, a batch runs, and every decision carries its reason."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

Server: TypeAlias = Hashable
"""A device that slots share; None where each slot is a server of its own."""


class Phase(enum.Enum):
    """Where a request is. The scheduler itself sets QUEUED, RUNNING, and ACCEPTED when it lets a ticket go."""

    ACCEPTED = "accepted"  # in the gateway, not the scheduler's
    ASKING = "asking"  # the store is asked
    ELSEWHERE = "elsewhere"  # another gateway computes it
    FETCHING = "fetching"  # the model's `fetch` waits for what it asked for
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
    step_s: tuple[tuple[float, ...], ...] = ()  # by member: what each of these took before the first batch, if known
    grid_s: tuple[tuple[float, tuple[tuple[float, ...], ...]], ...] = ()  # the same by size of requests, if that varies
    together_s: tuple[float, ...] = ()  # what all members at once took, for the first of these


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
    is_counted: bool = False  # among what was offered, even if it is offered again
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


class Took(NamedTuple):
    """What a worker says of a stage on a device, and of what was done before and after it. Seconds."""

    device_s: float
    waited_s: float  # for the device, behind another batch
    finish_s: float


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
    is_at_once: bool = False  # all members at once: on idle cores, as nothing else runs or waits, or on a device
    served: Any = None  # the model it was started for, and what was known of its speed then; owned by InFlight
    estimate: Any = None
    is_roomy: bool = False  # when it began, everybody who waited could have all members as well, with time to spare
    members_s: Sequence[float] = ()  # what its worker says that each member took, if it told of all of them at once
    is_first: bool = False  # its worker has never run so many items of such a size: that may take far longer, once
    may_stall: bool = False  # its worker meets what its device did not prepare, in this batch or in one before it
    step: int = 0  # the size that it is run with: padded, if its backend runs some sizes only
    # The rest is for batches on a device.
    server: Server | None = None
    ready: float = 0.0  # when it is expected to have all that it needs besides the device
    stage_s: float = 0.0  # of the device, for what runs until the next report
    sure: int = 0  # members that run in any case: all that everybody can have, when it is given to the device
    quiet_s: float = 0.0  # for so long nothing is reported or asked between them
    took: Took | None = None  # what was said of the last stage
    used_s: float = 0.0  # of the device, in all its stages

    def __len__(self) -> int:
        return len(self.tickets)


@dataclass(slots=True, frozen=True)
class Step:
    """What happens after a member: `leave` are answered now with what they have, `go` says that the rest go on."""

    go: bool
    leave: list[Ticket]
    stay: list[Ticket]
    reason: str
