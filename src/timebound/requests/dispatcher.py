"""The small loop around the scheduler: takes questions in, hands batches to free slots, delivers what comes back.

It waits on nothing and polls nothing. Five things move it: a request arrives (or its client leaves), a slot reports or
is lost, a guard's time comes, a batch hangs, a device is soon to be free. Requests that arrive in one turn of the event
loop are dispatched together at its end. `request.py` draws a request's life; `answers.py` sees to it that everybody who
waits is answered in time; `losses.py` does what follows when a worker is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from itertools import count
from math import inf
from typing import Any

import msgspec

from timebound.catalogue import Catalogue
from timebound.clock import Clock, Wall
from timebound.errors import KeyReused, Refusal, RequestError
from timebound.events import BatchFinished, BatchStarted, Degraded, Events
from timebound.requests.ahead import NOBODY, Ahead, Fetcher
from timebound.requests.alarm import Alarm
from timebound.requests.answers import Answers, Helper, because
from timebound.requests.claims import Claims
from timebound.requests.copies import Copies
from timebound.requests.floor import Floor, Sent, Slot, Slots
from timebound.requests.losses import Losses
from timebound.requests.models import Models
from timebound.requests.progress import wishes
from timebound.requests.request import Attempt, Phase, Request
from timebound.requests.staff import Staff
from timebound.scheduler.queue import length_bucket
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch, Step, Took
from timebound.store.base import Store
from timebound.types import UNFINISHED, Deliver, Outcome, Quality, Question, Report, Result, Run, Source

_INFERRED = ("", "model_failed", UNFINISHED)
"""Outcomes of items that reached `infer`; the others were refused before, and took hardly any time."""

_OF_TIME = ("too_late", "deadline_unreachable")
"""Why a request is given up that another one of its attempts may have the time for."""

_ASK_AFTER = 0.1
"""If all who wait can have all members, an ensemble runs for this share of the deadline before it asks after each.
Asking is a way to the gateway and back each time; until then it says what it has and goes on at once."""


class Dispatcher(Staff):
    """Owns the requests; everything in it happens on the event loop's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        *,
        slots: Slots,
        helper: Helper,
        fetcher: Fetcher = NOBODY,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        margin_s: float,
        store: Store,
        wall: Wall,
        max_queue: int = 4096,
        profiles: MutableMapping[str, Any] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._slots = slots
        self._clock = clock
        self._events = events
        self._loop = loop
        self._models = Models(scheduler, {} if profiles is None else profiles, max_queue)
        self._infos = self._models.infos
        self.learned = self._models.learned
        self._copies = Copies(self.submit, events)
        self._claims = Claims(store, wall)
        self._floor = Floor()
        self._answers = Answers(
            scheduler,
            helper=helper,
            clock=clock,
            events=events,
            loop=loop,
            margin_s=margin_s,
            claims=self._claims,
            is_busy=self._floor.watched,
            floor=self._floor,
            max_queue=max_queue,
        )
        self.unwaited = self._answers.unwaited
        self._losses = Losses(scheduler, self._floor, self._answers, slots=slots, clock=clock, events=events)
        self.ahead = Ahead(
            self._models, self._answers, self._losses, scheduler=scheduler, helper=helper, fetcher=fetcher, clock=clock,
            loop=loop, compute=self._compute, offer=self._offer,
        )  # fmt: skip
        self.add_model, self.remove_model = self.ahead.add_model, self.ahead.remove_model
        """Accepts requests for one more model, or for one as it is now; and none any more."""
        self._numbers = count()
        self._poll_is_due = False
        self._alarm = Alarm(loop, self._poll)
        self.is_closed = False
        """Whether nothing is accepted any more."""

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
        """Whether no slot has come to the end of its batch in a long time."""
        return self._losses.is_stuck

    @property
    def is_behind(self) -> Callable[[float], bool]:
        """Asked with the time, whether this process may be late to read what clients send."""
        return self._answers.pulse.is_behind  # asked for every request, so without a call more

    def queued(self) -> int:
        """Requests that wait for a slot."""
        return self._scheduler.queued()

    def is_running(self, model: str, key: str) -> bool:
        """Whether a request with this key is in work here."""
        return (model, key) in self._answers.by_key

    def close(self) -> None:
        """Accept nothing any more; what was accepted is answered."""
        self.is_closed = True

    async def drained(self) -> None:
        """Return when every accepted request has been answered."""
        await self._answers.drained()

    # ------------------------------------------------------------------ requests in

    def submit(self, question: Question, deliver: Deliver) -> Attempt:
        """Accept a question: `deliver` gets its one result or error, at once if the answer is a refusal.

        An attempt whose key is already in work joins it; pass the attempt to `gone` if its client leaves. Raises a
        `RequestError` if it is not accepted: `KeyReused` if the key is in work with another body, a `Refusal` if the
        server is leaving.
        """
        if self.is_closed:
            raise Refusal("the server is shutting down", code="draining", retry_after_s=1)
        if self._catalogue.lots and not question.served and (lot := self._catalogue.lots.get(question.model)):
            deliver = self._copies.divide(question, lot, deliver)
        key = (question.model, question.key) if question.key is not None else None
        known = self._answers.by_key.get(key) if key is not None else None
        if known is not None:
            return self._join(known, question, deliver)
        info = self._infos.get(question.served or question.model)
        if info is None:
            raise RequestError(f"the model {question.model!r} is no longer served", code="unknown_model")
        request = Request(
            next(self._numbers), info.name, self._answers.due(question), self._clock.now(), question.size,
            question.priority, bytes=len(question.body), info=info, body=question.body, key=key,
            fingerprint=question.fingerprint, hold=question.hold,
        )  # fmt: skip
        if question.is_shadow:  # behind everybody who waits, and without a fallback: nobody waits for a copy's answer
            request.is_copy = request.is_retry = True
            request.info = msgspec.structs.replace(info, has_fallback=False)
        attempt = self._answers.add(request, question, deliver)
        if key is None:
            self._compute(request)
        else:
            self._claims.ask(request, compute=self._compute, give=self._answers.give)
        return attempt

    def gone(self, attempt: Attempt, address: str = "") -> None:
        """The client has left. Its request is dropped before it runs, unless a retry may come for it by its key."""
        self._answers.drop(attempt, attempt.question.client or address)
        self.ahead.left(attempt.request)

    def _join(self, request: Request, question: Question, deliver: Deliver) -> Attempt:
        """One more attempt of a request in work. It takes nothing from those who wait for it already."""
        if request.fingerprint != question.fingerprint:
            raise KeyReused()
        is_retry = not request.attempts  # whose client had left; else both wait, and neither is a retry
        if is_retry:
            self.unwaited.remove(request)
        due = self._answers.due(question)
        attempt = self._answers.add(request, question, deliver, has_joined=True)
        if request.phase is Phase.RUNNING:
            self._scheduler.renew(request, max(request.deadline, due), is_retry=request.is_retry)
        elif is_retry or due < request.deadline:
            self._scheduler.renew(request, due, is_retry=is_retry or request.is_retry)
            self._poll_soon()
        return attempt

    def _compute(self, request: Request) -> None:
        """It is this gateway's to compute: find out its size if need be, and let the scheduler have it."""
        if (self._losses.suspects or self._losses.traits) and self._losses.is_locked_up(request):
            self._answers.give_up(request, "crashes_worker")
        elif request.info.has_size or request.info.has_fetch:
            self.ahead.begin(request)
        else:
            self._offer(request, self._clock.now())

    def _offer(self, request: Request, now: float) -> None:
        if request.model not in self._infos and not self._models.redirect(request):
            self._answers.give_up(request, "removed")  # while the store, or its size, was asked for
            return
        while (verdict := self._scheduler.offer(request, now)) is not None:
            if verdict.reason == "queue_full" and request.attempts and self.unwaited.make_place(request.model):
                continue
            if verdict.reason not in _OF_TIME or not self._answers.give_up_first(request, verdict.reason):
                self._answers.give_up(request, verdict.reason, verdict.retry_after_s, verdict.predicted_s)
                break
        if self._scheduler.aside:
            self._settle_aside()
        if self._floor.free:
            self._poll_soon()

    def _settle_aside(self) -> None:
        """Who was given up by the scheduler is told; those of a request's attempts that have more time go on."""
        for aside in self._scheduler.set_aside():
            request = aside.ticket
            assert isinstance(request, Request)
            if aside.reason in _OF_TIME and self._answers.give_up_first(request, aside.reason):
                self._offer(request, self._clock.now())
            else:
                self._answers.give_up(request, aside.reason)

    # ------------------------------------------------------------------ batches out

    def _poll_soon(self) -> None:
        if self._floor.free and not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Give every free slot that can be used its next batch."""
        self._poll_is_due = False
        now, free = self._clock.now(), self._floor.free
        if (self._losses.trials.worker is not None or self._scheduler.has_suspects) and free:
            trial = self._losses.next_trial(now)
            self._settle_aside()
            if trial is not None:
                self._begin(*trial, now)
        while free:
            is_any = self._losses.trials.worker is None and not self._floor.devices
            slot = next(iter(free)) if is_any else self._losses.open_slot(now)
            if slot is None:
                return
            batch = self._scheduler.take(now, self._floor.devices.get(slot))
            if self._scheduler.aside:
                self._settle_aside()
            if batch is None:
                if self._scheduler.due < inf:
                    self._alarm.set(self._scheduler.due, now)
                return
            self._begin(slot, batch, now)

    def _begin(self, slot: Slot, batch: Batch, now: float) -> None:
        requests: list[Request] = list(batch.tickets)  # type: ignore[arg-type]
        del self._floor.free[slot]
        facts = (len(requests), batch.reason, batch.started, batch.predicted_s, batch.latest_end, batch.step)
        run = Run(batch.id, batch.model, str(slot), *facts, batch.stage_s, batch.sure)
        self._floor.running[slot] = Sent(batch, requests, now, run)
        worker, shape = self._slots.worker_of(slot), (batch.model, batch.step, length_bucket(batch.size))
        if not self._answers.pulse.is_running:
            self._answers.pulse.start()
        queued, info = self._scheduler.queued(), self._infos[batch.model]
        # Where each step was measured at the warm-up, every worker has run them all.
        batch.is_first = not info.step_s and shape not in self._floor.ran[worker]
        batch.may_stall = worker in self._floor.stalled
        left_s = min(info.deadline_s, batch.latest_end - now)
        ask_after_s = max(0.0, _ASK_AFTER * left_s) if batch.is_roomy else 0.0
        votes = wishes(batch, requests) if info.members > 1 else []
        self._slots.send(slot, batch, [each.body for each in requests], ask_after_s=ask_after_s, votes=votes)
        for request in requests:
            if len(request.attempts) > 1:  # each has a guard of its own: the batch goes on for who has most time
                request.deadline = max(self._answers.due(attempt.question) for attempt in request.attempts)
        self._events.emit(BatchStarted.of(run, queued))

    # ------------------------------------------------------------------ results

    def report(self, slot: Slot, report: Report) -> None:
        """A slot reports on its batch: final outcomes, or those after one more member."""
        sent = self._floor.running[slot]
        if report.is_note:
            self._deliver(sent, report, Step(True, [], list(sent.requests), "note"))
            return
        batch, now = sent.batch, self._clock.now()
        seconds, sent.stage_started = now - sent.stage_started, now
        if report.is_short_of_memory:
            self._losses.shrink(sent, is_certain=True)
        batch.inferred = sum([outcome.code in _INFERRED for outcome in report.outcomes])
        batch.members_s = report.timing.members_s
        batch.took = Took(report.device_s, report.waited_s, report.timing.finish_s) if report.device_s else None
        if report.members == report.of_members:
            self._scheduler.batch_done(batch, seconds, now)
            step = Step(False, list(sent.requests), [], "complete")
        else:
            step = self._scheduler.member_done(batch, seconds, now, report.members)
            self._slots.decide(slot, batch, go=step.go)
        if not step.go:
            self._free(slot, sent)  # next batch first: the slot computes while answers are written
        self._deliver(sent, report, step)
        self._settle_aside()
        if not step.go:
            self._events.emit(BatchFinished.of(sent.run, report, now - batch.started, step.reason, batch.used_s))
            self._answers.forget_unwanted(sent.requests)
        self._answers.margin.observe(self._clock.now() - now)
        self._scheduler.margin_s = self._answers.margin.seconds

    def _free(self, slot: Slot, sent: Sent) -> None:
        """Its batch is over. The slot takes the next one, unless it was to leave after this."""
        if self._losses.suspects or self._losses.traits:
            self._losses.clear(sent.requests)
        batch, ran = sent.batch, self._floor.ran[self._slots.worker_of(slot)]
        items, info = batch.inferred or 0, batch.served.spec
        ran.add((batch.model, next((s for s in info.batch_sizes if s >= items), items), length_bucket(batch.size)))
        del self._floor.running[slot]
        left = self._floor.leaving.pop(slot, None)
        if left is None:
            self._floor.free[slot] = None
            self._poll()
        else:
            left()

    def _deliver(self, sent: Sent, report: Report, step: Step) -> None:
        """Answer who leaves now, and keep for the others what they would be answered now."""
        leaving, unfinished = set(map(id, step.leave)), 0
        for place, (request, outcome) in enumerate(zip(sent.requests, report.outcomes, strict=True)):
            if not (request.attempts or request.owns_key):
                continue
            if place in report.killers:
                self._losses.in_hand(request, report.killers[place])
                continue
            if outcome.code == "model_failed" and request.so_far is not None:  # a later member failed on this item
                self._events.emit(Degraded(sent.batch.model, 1, Quality.PARTIAL, "member_failed"))
                self._answers.give(request, because(request.so_far, "member_failed"))
                continue
            result = _result(sent, place, outcome, report, step)
            is_over = not step.go and not request.attempts  # for whoever comes for it by its key
            if outcome.code == UNFINISHED:
                if not step.go or id(request) in leaving:
                    unfinished += id(request) in leaving
                    self._answers.give_unfinished(request, result, step.reason)
            elif outcome.code or is_over or id(request) in leaving:  # an item's own error is final, whoever goes on
                self._answers.give(request, result)
            elif request.best is None or request.best.members < report.members:
                request.better(result)
        if report.members < report.of_members and (count := len(step.leave) - unfinished):
            self._events.emit(Degraded(sent.batch.model, count, Quality.PARTIAL, step.reason))


def _result(sent: Sent, place: int, outcome: Outcome, report: Report, step: Step) -> Result:
    """What a report says of the request at this place, with how it came about."""
    request, is_full = sent.requests[place], report.members == report.of_members
    return Result(
        outcome, Quality.FULL if is_full else Quality.PARTIAL, Source.COMPUTED, report.members, report.of_members,
        len(sent.requests), sent.run.started - request.arrived, report.timing, report.votes.get(place, ""),
        request.info.version, sent.run, "" if is_full else step.reason,
    )  # fmt: skip
