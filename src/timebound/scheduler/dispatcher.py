"""The small loop around the policy: takes requests in, hands batches to free slots, delivers what comes back.

It waits on nothing and polls nothing. Three things move it: a request arrives, a slot reports, a guard
timer fires. Requests that arrive in one turn of the event loop are dispatched together at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import count

import msgspec

from timebound.clock import Clock
from timebound.errors import DeadlineMissed, RequestError, WorkerDied
from timebound.events import BatchFinished, BatchLost, BatchStarted, Events
from timebound.scheduler.policy import Scheduler
from timebound.scheduler.ticket import Batch, ModelSpec, Ticket
from timebound.types import Deliver, ModelInfo, Outcome, Request, Result, Timing

Slot = Hashable
Send = Callable[[Slot, Batch], None]


class Waiting(msgspec.Struct, eq=False):
    """What the dispatcher keeps with a ticket: the request, who waits for it, and its guard."""

    request: Request
    deliver: Deliver
    guard: asyncio.TimerHandle


class Dispatcher:
    """Owns the pending requests. `send` hands a batch to a slot; `margin_s` is kept free before each deadline."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        send: Send,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        margin_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._send = send
        self._clock = clock
        self._events = events
        self._loop = loop
        self._margin_s = margin_s
        self._seq = count()
        self._free: dict[Slot, None] = {}  # a dict keeps the order in which slots became free
        self._running: dict[Slot, Batch] = {}
        self._poll_is_due = False
        self._pending = 0
        self._idle: asyncio.Future[None] | None = None

    @property
    def pending(self) -> int:
        """Requests accepted and not yet answered."""
        return self._pending

    def queued(self) -> int:
        """Requests that wait for a slot."""
        return self._scheduler.queued()

    def add_model(self, info: ModelInfo) -> None:
        """Accept requests for this model from now on."""
        self._scheduler.add_model(
            ModelSpec(
                name=info.name,
                deadline_s=info.deadline_s,
                max_batch=info.max_batch,
                first_guess_s=max(info.warm_up_s, 1e-5),
            )
        )

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Accept a request: `deliver` gets its one result or error. Raises `Refusal` at once if there is no room."""
        now = self._clock.now()
        ticket = Ticket(seq=next(self._seq), model=request.model, deadline=request.deadline, arrived=now)
        self._scheduler.offer(ticket, now)
        guard = self._loop.call_later(request.deadline - self._margin_s - now, self._guard, ticket)
        ticket.payload = Waiting(request, deliver, guard)
        self._pending += 1
        if self._free and not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self._poll)

    def slot_up(self, slot: Slot) -> None:
        """A slot can take batches."""
        self._free[slot] = None
        self._poll()

    def slot_down(self, slot: Slot) -> None:
        """A slot is gone; what ran there is dispatched once more, or fails."""
        self._free.pop(slot, None)
        batch = self._running.pop(slot, None)
        if batch is None:
            return
        self._events.emit(BatchLost(batch.model, len(batch.tickets)))
        for ticket in self._scheduler.batch_lost(batch, self._clock.now()):
            self._deliver(ticket, WorkerDied("the worker died while computing this request"))
        self._poll()

    def batch_back(
        self, slot: Slot, outcomes: Sequence[Outcome], timing: Timing, members: int, of_members: int
    ) -> None:
        """The batch running on `slot` came back: deliver each outcome, and give the slot its next batch."""
        batch = self._running.pop(slot)
        now = self._clock.now()
        self._free[slot] = None
        self._scheduler.batch_done(batch, now)
        # Next batch first: the slot computes while answers are written.
        self._poll()
        size = len(batch.tickets)
        for ticket, outcome in zip(batch.tickets, outcomes, strict=True):
            self._deliver(
                ticket,
                Result(
                    outcome,
                    members=members,
                    of_members=of_members,
                    batch_size=size,
                    queue_s=batch.started - ticket.arrived,
                    timing=timing,
                ),
            )
        self._events.emit(BatchFinished(batch.model, size, now - batch.started, batch.predicted_s))

    async def drained(self) -> None:
        """Return when every accepted request has been answered."""
        if self._pending:
            self._idle = self._loop.create_future()
            await self._idle

    def _poll(self) -> None:
        self._poll_is_due = False
        now = self._clock.now()
        while self._free:
            batch = self._scheduler.take(now)
            if batch is None:
                return
            slot = next(iter(self._free))
            del self._free[slot]
            self._running[slot] = batch
            self._send(slot, batch)
            self._events.emit(BatchStarted(batch.model, len(batch.tickets), batch.reason, self._scheduler.queued()))

    def _deliver(self, ticket: Ticket, result: Result | RequestError) -> None:
        """Answer a ticket and take it out of the world; nothing happens if somebody was faster."""
        waiting: Waiting | None = ticket.payload
        if waiting is None:
            return
        ticket.payload = None  # answered tickets may stay in the queue a while; their bodies must not
        self._scheduler.withdraw(ticket)
        waiting.guard.cancel()
        self._pending -= 1
        if self._pending == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        waiting.deliver(result)

    def _guard(self, ticket: Ticket) -> None:
        waiting: Waiting | None = ticket.payload
        if waiting is None:
            return
        early = ticket.deadline - self._margin_s - self._clock.now()
        if early > 0:  # the event loop fires up to a millisecond early
            waiting.guard = self._loop.call_later(early, self._guard, ticket)
            return
        where = "in the queue" if ticket.is_queued else "while it was computed"
        self._deliver(ticket, DeadlineMissed(f"the deadline came {where}"))


def bodies(batch: Batch) -> list[bytes]:
    """The payloads of a batch; empty for a ticket that was answered meanwhile."""
    return [ticket.payload.request.body if ticket.payload else b"" for ticket in batch.tickets]
