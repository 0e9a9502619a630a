"""The small loop around the scheduler: takes requests in, hands batches to free slots, delivers what comes back.

It waits on nothing and polls nothing. Four things move it: a request arrives (or its client leaves), a slot
reports or is lost, a guard's time comes, a batch hangs. Requests that arrive in one turn of the event loop are
dispatched together at its end.

What a waiting client gets, best first: the full answer; the members that are done when its time is up or the
backlog needs the slot; the model's fallback; a refusal. Each attempt has a guard, a timer shortly before its
deadline, that gives the best there is. So nobody is answered late, whatever the predictions were worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from math import inf
from typing import Any

import msgspec

from timebound.clock import Clock, Wall
from timebound.errors import CopyLost, KeyReused
from timebound.events import BatchesShrunk, BatchFinished, BatchLost, BatchStarted, Degraded, Events
from timebound.scheduler.answers import Answers, Helper
from timebound.scheduler.claims import Claims
from timebound.scheduler.pending import Attempt, Pending
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.slots import Floor, Running, Slot, Slots
from timebound.scheduler.suspicion import Suspicion
from timebound.scheduler.ticket import Batch, ModelSpec, State, Step, Ticket
from timebound.scheduler.trials import Trials
from timebound.scheduler.watchdog import Watchdog
from timebound.store.base import Store
from timebound.types import UNFINISHED, Deliver, Loss, ModelInfo, Quality, Report, Request, Result

_INFERRED = ("", "model_failed", UNFINISHED)
"""Outcomes of items that reached `infer`; the others were refused before, and took hardly any time."""

_ASK_AFTER = 0.1
"""If nothing waits, an ensemble runs for this share of the deadline before it asks after each member. Asking is a
way to the gateway and back each time; until then it says what it has and goes on at once."""


class Dispatcher:
    """Owns the pending requests; everything in it happens on the event loop's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        slots: Slots,
        helper: Helper,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        margin_s: float,
        store: Store,
        wall: Wall,
        max_queue: int = 4096,
    ) -> None:
        self._scheduler = scheduler
        self._max_queue = max_queue
        self._slots = slots
        self._helper = helper
        self._clock = clock
        self._events = events
        self._loop = loop
        self._claims = Claims(store, wall)
        self._answers = Answers(
            scheduler,
            helper=helper,
            clock=clock,
            events=events,
            loop=loop,
            margin_s=margin_s,
            claims=self._claims,
        )
        self._models: dict[str, ModelInfo] = {}
        self._shadows: dict[str, ModelInfo] = {}  # the same, without fallbacks: nobody waits for a copy's answer
        self._successors: dict[str, str | None] = {}  # of models that are no longer served
        self._seq = count()
        self._floor = Floor()
        self._suspicion = Suspicion(scheduler, self._answers, clock=clock, events=events)
        self._trials = Trials(slots.worker_of)
        self._watchdog = Watchdog(
            self._floor.batches,
            limit_s=self._hang_limit_s,
            on_hang=self._kill,
            clock=clock,
            loop=loop,
        )
        self._poll_is_due = False

    # ------------------------------------------------------------------ what others may know

    @property
    def waiting(self) -> int:
        """Attempts accepted and not yet answered."""
        return self._answers.waiting

    @property
    def margin_s(self) -> float:
        """Seconds kept free before each deadline now."""
        return self._answers.margin.seconds

    @property
    def is_stuck(self) -> bool:
        """Whether every slot has been at its batch for far longer than any batch takes."""
        now, limit_s = self._clock.now(), self._scheduler.hang_limit_s
        batches = [running.batch for running in self._floor.running.values()]
        return not self._floor.free and bool(batches) and all(now - b.started > limit_s(b) for b in batches)

    @property
    def is_behind(self) -> Callable[[float], bool]:
        """Asked with the time, whether this process may be late to read what clients send."""
        return self._answers.pulse.is_behind  # asked for every request, so without a call more

    def queued(self) -> int:
        """Requests that wait for a slot."""
        return self._scheduler.queued()

    def add_model(self, info: ModelInfo, profile: dict[str, Any] | None = None) -> None:
        """Accept requests for this model from now on; one that is known keeps what was learned."""
        is_new = info.name not in self._models
        self._models[info.name] = info
        self._shadows[info.name] = msgspec.structs.replace(info, has_fallback=False)
        spec = ModelSpec(
            info.name,
            info.deadline_s,
            info.members,
            info.max_batch,
            can_fallback=info.has_fallback,
            is_parallel=info.is_parallel,
            max_queue=self._max_queue,
        )
        self._scheduler.add_model(spec, profile)
        if is_new and profile is None and info.warm_up_s > 0:
            self._scheduler.guess(info.name, info.warm_up_s)

    def remove_model(self, name: str, successor: str | None = None) -> None:
        """It is no longer served: what waits for it goes to its successor, or gets the best there is without it."""
        del self._models[name]
        self._successors[name] = successor
        for ticket in self._scheduler.remove_model(name):
            pending: Pending = ticket.payload
            if successor is None:
                self._answers.give_up(pending, "removed")
            else:
                ticket.model, pending.info = successor, self._models[successor]
                self._offer(pending, self._clock.now())

    def profile(self) -> dict[str, Any]:
        """What was learned about each model's speed, to be handed to `add_model` after a restart."""
        return self._scheduler.profile()

    async def drained(self) -> None:
        """Return when every accepted request has been answered."""
        await self._answers.drained()

    # ------------------------------------------------------------------ requests in

    def submit(self, request: Request, deliver: Deliver) -> Attempt:
        """Accept a request: `deliver` gets its one result or error, at once if the answer is a refusal.

        An attempt whose key is already in work joins it; pass the attempt to `gone` if its client leaves. Raises
        `KeyReused` if that has another body.
        """
        key = (request.model, request.key) if request.key is not None else None
        known = self._answers.find(key) if key is not None else None
        if known is not None:
            if known.fingerprint != request.fingerprint:
                raise KeyReused()
            return self._join(known, request, deliver)
        now = self._clock.now()
        info = (self._shadows if request.is_shadow else self._models)[request.served or request.model]
        due = self._due(request)
        ticket = Ticket(next(self._seq), info.name, due, now, size=request.size, priority=request.priority)
        if request.is_shadow:
            ticket.attempt = 2  # behind everybody who waits
        pending = ticket.payload = Pending(info, ticket, request.body, key, [], request.fingerprint)
        pending.is_copy = request.is_shadow
        pending.hold = request.hold
        ticket.bytes = len(request.body)
        attempt = self._answers.add(pending, request, deliver)
        self._claims.ask(pending, request, compute=self._compute, give=self._answers.give)
        return attempt

    def is_running(self, model: str, key: str) -> bool:
        """Whether a request with this key is in work here."""
        return self._answers.find((model, key)) is not None

    def gone(self, attempt: Attempt) -> None:
        """The client has left. Its request is dropped before it runs, unless a retry may come for it by its key."""
        self._answers.drop(attempt)

    def _join(self, pending: Pending, request: Request, deliver: Deliver) -> Attempt:
        attempt = self._answers.add(pending, request, deliver, has_joined=True)
        ticket = pending.ticket
        if not pending.is_offered:  # its size is still being asked for
            ticket.deadline = max(ticket.deadline, self._due(request))
            return attempt
        verdict = self._scheduler.rejoin(ticket, self._due(request), self._clock.now())
        if verdict is not None:
            self._answers.give_up(pending, verdict.reason, verdict.retry_after_s)
        self._settle_aside()
        self._poll_soon()
        return attempt

    def _due(self, request: Request) -> float:
        """The deadline for the scheduler, which keeps its whole margin before it: of a short limit that is too much."""
        return request.deadline + self._scheduler.margin_s - self._answers.margin_of(request)

    def _compute(self, pending: Pending) -> None:
        """It is this gateway's to compute: find out its size if need be, and let the scheduler have it."""
        if self._suspicion.is_locked_up(pending):
            self._answers.give_up(pending, "crashes_worker")
            return
        if pending.info.has_size:
            self._helper.size(pending.info.name, pending.body, partial(self._sized, pending))
        else:
            self._offer(pending, self._clock.now())

    def _sized(self, pending: Pending, size: float | None) -> None:
        if not pending.attempts:
            return
        if size == inf:  # the model's own way to say: not this one
            self._answers.give_up(pending, "too_long")
            return
        pending.ticket.size = size if size is not None and 0 < size < 1e15 else 1.0
        self._offer(pending, self._clock.now())

    def _offer(self, pending: Pending, now: float) -> None:
        pending.is_offered = True
        verdict = self._scheduler.offer(pending.ticket, now)
        if verdict is not None:
            self._answers.give_up(pending, verdict.reason, verdict.retry_after_s)
        self._settle_aside()
        self._poll_soon()

    # ------------------------------------------------------------------ slots

    def slot_up(self, slot: Slot) -> None:
        """A slot can take batches."""
        self._trials.found(self._slots.worker_of(slot))
        self._floor.free[slot] = None
        self._count_slots()
        self._poll()

    def strain(self, *, is_on: bool) -> None:
        """Whether processes are being started: cores are short then, and answers are given a little earlier."""
        self._answers.strain(is_on=is_on)

    def retire(self, slots: Iterable[Slot], done: Callable[[], None]) -> None:
        """Give these slots no more batches; `done` is called when they run none. Lost ones are not waited for."""
        self._floor.retire(slots, done)
        self._count_slots()

    def slots_down(self, slots: Iterable[Slot], loss: Loss = Loss.GONE) -> None:
        """A worker's slots are gone, all at once; what ran there is dispatched again, as long as there is time."""
        slots = list(slots)
        if slots and loss is not Loss.GONE:
            self._trials.lost(self._slots.worker_of(slots[0]))
        lost = [running for slot in slots if (running := self._floor.lose(slot)) is not None]
        self._count_slots()
        for running in lost:
            batch = running.batch
            self._hand_over(batch)
            self._events.emit(BatchLost(batch.model, len(running.tickets), loss))
            self._drop_copies(running)
            if loss is Loss.KILLED:
                self._shrink(running, is_certain=False)
            guilty = self._suspicion.blame(running.tickets, loss, is_alone=len(lost) == 1)
            self._scheduler.batch_lost(batch, self._clock.now(), guilty)
            if guilty is not None:
                self._suspicion.lock_up(guilty, loss)
            self._forget_unwanted(running)
        self._poll()

    def _drop_copies(self, running: Running) -> None:
        """Copies are not tried again: no second worker is risked for an answer that nobody waits for."""
        for ticket in list(running.tickets):
            pending: Pending | None = ticket.payload
            if pending is not None and pending.is_copy:
                running.tickets.remove(ticket)
                self._answers.give(pending, CopyLost())

    def _hang_limit_s(self, batch: Batch) -> float:
        limit_s = self._scheduler.hang_limit_s(batch)
        if batch.tickets and all(ticket.payload is not None and ticket.payload.is_copy for ticket in batch.tickets):
            deadline_s: float = batch.tickets[0].payload.info.deadline_s
            return min(limit_s, 2 * deadline_s)  # the slot is needed for real requests
        return limit_s

    def _shrink(self, running: Running, *, is_certain: bool) -> None:
        """Memory was short, or may have been: smaller batches for a while."""
        batch, items = running.batch, len(running.tickets)
        limit = self._scheduler.short_of_memory(batch, items, self._clock.now(), is_certain=is_certain)
        if limit is not None:
            self._events.emit(BatchesShrunk(batch.model, limit))

    def _kill(self, hung: Batch) -> None:
        """A batch hangs: its worker is killed; what that means for its slots is heard when it is gone."""
        for slot, running in self._floor.running.items():
            if running.batch is hung:
                running.is_hung = True
                self._slots.kill(slot)
                return

    def _hand_over(self, batch: Batch) -> None:
        """A batch of a version that is no longer served was lost: its tickets go to the version that took over."""
        successor = self._successors.get(batch.model)
        if batch.model not in self._models and successor in self._models:
            batch.model = successor
            for ticket in batch.tickets:
                ticket.model, ticket.payload.info = successor, self._models[successor]

    def report(self, slot: Slot, report: Report) -> None:
        """A slot reports on its batch: final outcomes, or those after one more member."""
        running = self._floor.running[slot]
        if report.is_note:
            self._deliver(running, report, Step(True, [], running.tickets, "note"))
            return
        batch, now = running.batch, self._clock.now()
        seconds, running.stage_started = now - running.stage_started, now
        if report.is_short_of_memory:
            self._shrink(running, is_certain=True)
        batch.inferred = sum(outcome.code in _INFERRED for outcome in report.outcomes)
        if report.is_final:
            self._scheduler.batch_done(batch, seconds, now)
            step = Step(False, running.tickets, [], "complete")
        else:
            step = self._scheduler.member_done(batch, seconds, now, report.members)
            self._slots.decide(slot, batch, go=step.go)
        if not step.go:
            # Next batch first: the slot computes while answers are written.
            self._suspicion.clear(running.tickets)
            if self._floor.end(slot):
                self._poll()
        self._deliver(running, report, step)
        self._settle_aside()
        if not step.go:
            took_s = now - batch.started
            size = len(running.tickets)
            self._events.emit(BatchFinished(batch.model, size, took_s, batch.predicted_s, report.members, step.reason))
            self._forget_unwanted(running)
        self._answers.margin.observe(self._clock.now() - now)
        self._scheduler.margin_s = self._answers.margin.seconds

    def _deliver(self, running: Running, report: Report, step: Step) -> None:
        """Answer who leaves now, and keep for the others what they would be answered now."""
        leaving, unfinished = set(map(id, step.leave)), 0
        for place, (ticket, outcome) in enumerate(zip(running.tickets, report.outcomes, strict=True)):
            pending: Pending | None = ticket.payload
            if pending is None or not (pending.attempts or pending.is_claimed):
                continue
            if outcome.code == "model_failed" and pending.best is not None:  # a later member failed on this item
                self._events.emit(Degraded(running.batch.model, 1, Quality.PARTIAL, "member_failed"))
                self._answers.give(pending, pending.best)
                continue
            result = running.result(place, outcome, report)
            is_over = not step.go and not pending.attempts  # for whoever comes for it by its key
            if outcome.code == UNFINISHED:
                if not step.go or id(ticket) in leaving:
                    unfinished += id(ticket) in leaving
                    self._leave_unfinished(pending, result, step.reason)
            elif outcome.code or is_over or id(ticket) in leaving:  # an item's own error is final, whoever else goes on
                self._answers.give(pending, result)
            elif pending.best is None or pending.best.members < report.members:
                pending.best = result
        if not report.is_final and (count := len(step.leave) - unfinished):
            self._events.emit(Degraded(running.batch.model, count, Quality.PARTIAL, step.reason))

    def _leave_unfinished(self, pending: Pending, result: Result, reason: str) -> None:
        """No more members come, and those that ran make no answer: an earlier one, its fallback, or the error."""
        if pending.attempts and (pending.best is not None or pending.info.has_fallback):
            self._answers.give_up(pending, reason)
        else:
            failed = msgspec.structs.replace(result.outcome, code="model_failed")
            self._answers.give(pending, pending.best or msgspec.structs.replace(result, outcome=failed))

    def _count_slots(self) -> None:
        self._scheduler.set_slots(len(self._floor))

    def _poll_soon(self) -> None:
        if self._floor.free and not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        self._poll_is_due = False
        now = self._clock.now()
        if self._scheduler.has_suspects or self._trials.worker is not None:
            self._poll_suspects(now)
        while self._floor.free and (slot := self._trials.open_slot(self._floor.free)) is not None:
            batch = self._scheduler.take(now)
            self._settle_aside()
            if batch is None:
                return
            self._begin(slot, batch, now)

    def _poll_suspects(self, now: float) -> None:
        """Give the next suspects a worker of their own, when one runs nothing else."""
        if self._trials.slot in self._floor.running:
            return
        slot = self._trials.choose(self._floor.free, self._floor.running, self._floor.leaving)
        # The last worker is not risked while others need it and the next one is on its way, unless time runs out.
        is_needed = bool(self._floor.running) or self._scheduler.has_others
        is_last = bool(self._trials.missing) and self._trials.is_last(self._floor.free, self._floor.running)
        if is_needed and is_last and self._scheduler.suspects_can_wait(now):
            self._trials.end()
            return
        batch = self._scheduler.take_suspects(now) if slot is not None else None
        self._settle_aside()
        if batch is not None:
            self._begin(slot, batch, now)
        elif not self._scheduler.has_suspects:
            self._trials.end()

    def _begin(self, slot: Slot, batch: Batch, now: float) -> None:
        self._floor.begin(slot, Running(batch, list(batch.tickets), now))
        self._watchdog.watch(batch)
        queued = self._scheduler.queued()
        left_s = min(self._models[batch.model].deadline_s, batch.latest_end - now)
        ask_after_s = 0.0 if queued else max(0.0, _ASK_AFTER * left_s)
        self._slots.send(slot, batch, [ticket.payload.body for ticket in batch.tickets], ask_after_s)
        self._events.emit(BatchStarted(batch.model, len(batch.tickets), batch.reason, queued))

    def _forget_unwanted(self, running: Running) -> None:
        """Requests kept for a retry that did not come before their batch was over."""
        for ticket in running.tickets:
            pending: Pending | None = ticket.payload
            if pending is not None and not pending.attempts and ticket.state is State.OUT:
                self._answers.forget(pending)

    def _settle_aside(self) -> None:
        for aside in self._scheduler.set_aside():
            self._answers.give_up(aside.ticket.payload, aside.reason)
