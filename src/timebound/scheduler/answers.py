"""Who gets which answer, and when at the latest: attempts, their guards, fallbacks and refusals.

Best first: the full answer; the members that are done when time is up or the backlog needs the slot; the model's
fallback; a refusal. Each attempt has a guard, a timer shortly before its deadline, that gives the best there is then.
So nobody is answered late, whatever the predictions were worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

import msgspec

from timebound.clock import Clock
from timebound.errors import BadInput, CrashesWorker, DeadlineMissed, Refusal, RequestError
from timebound.events import Degraded, Events
from timebound.scheduler.claims import Claims, is_worth_keeping
from timebound.scheduler.margin import Margin
from timebound.scheduler.pending import Attempt, Pending
from timebound.scheduler.pulse import Pulse
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import State, Ticket
from timebound.types import Deliver, Outcome, Quality, Request, Result, Source

_MOST_OF_A_LIMIT = 0.1
"""No more than this share of a request's time is kept free at its end, for writing and for its fallback each."""

_HALF_A_LIMIT, _ROUND_TRIP_S = 0.5, 0.002
"""Of a short limit more is kept free for a fallback, up to half: to and from another process takes what it takes."""

_LEAST_OF_A_LIMIT, _ENOUGH_S = 0.01, 0.02
"""Of a long limit this share is kept free, up to so many seconds: it costs little, and stalls come unasked."""

_WORTH_ARMING, _WORTH_ARMING_S = 1.25, 0.002
"""Guards that are set are moved only if so much more is to be kept free than when they were set: it costs a heap."""

_REFUSALS = {
    "queue_full": "too many requests are waiting already",
    "deadline_unreachable": "this request cannot be computed before its deadline",
    "overloaded": "more work is waiting than can be done before its deadlines",
    "too_late": "the load left no time for this request before its deadline",
}


class Helper(Protocol):
    """Who computes sizes and fallbacks of the user's own: the understudy."""

    def size(self, model: str, body: bytes, done: Callable[[float | None], None]) -> None: ...
    def fallback(self, model: str, body: bytes, done: Callable[[Outcome | None], None]) -> None: ...


class Answers:
    """The attempts that wait. Every attempt that is added gets exactly one delivery, unless it is dropped."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        helper: Helper,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        margin_s: float,
        claims: Claims,
    ) -> None:
        self._scheduler = scheduler
        self._claims = claims
        self._helper = helper
        self._clock = clock
        self._events = events
        self._loop = loop
        self.margin = Margin(margin_s)
        self._fallback_time = Margin(0.020, floor_s=0.010)
        self._by_key: dict[tuple[str, str], Pending] = {}
        self._drains: list[asyncio.Future[None]] = []
        self._guards: list[tuple[float, int]] = []  # a heap of when and whom; whoever is answered is skipped
        self._guarded: dict[int, Attempt] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._armed_with_s = margin_s
        self.pulse = Pulse(self._beat, is_needed=lambda: self.waiting > 0, clock=clock, loop=loop)
        self.waiting = 0

    async def drained(self) -> None:
        """Return when no attempt waits."""
        if self.waiting:
            idle = self._loop.create_future()
            self._drains.append(idle)
            await idle

    # ------------------------------------------------------------------ attempts

    def find(self, key: tuple[str, str]) -> Pending | None:
        """The request with this key that another attempt can join."""
        return self._by_key.get(key)

    def queued(self) -> list[Pending]:
        """The requests somebody waits for that have not started."""
        pendings = {id(attempt.pending): attempt.pending for attempt in self._guarded.values()}
        return [pending for pending in pendings.values() if pending.ticket.state is State.QUEUED]

    def add(self, pending: Pending, request: Request, deliver: Deliver, *, has_joined: bool = False) -> Attempt:
        """One more client waits for `pending`."""
        if not self.pulse.is_running:
            self.pulse.start()
            self._beat(0.0, self._clock.now())  # nobody has waited for a while: old stalls are forgotten
        attempt = Attempt(next(self._numbers), request, deliver, pending, has_joined)
        self._guarded[attempt.number] = attempt
        pending.attempts.append(attempt)
        self.waiting += 1
        if pending.key is not None:
            self._by_key.setdefault(pending.key, pending)
        self._arm(attempt)
        return attempt

    def drop(self, attempt: Attempt) -> None:
        """The client has left. Its request is dropped before it runs, unless a retry may come for it by its key."""
        pending = attempt.pending
        if attempt.number not in self._guarded:
            return
        self._remove(attempt)
        if not pending.attempts:
            keep = pending.key is not None and not pending.is_falling and pending.is_offered
            keep = keep and not pending.ticket.is_suspect  # a worker is risked only for somebody who waits
            self._scheduler.abandon(pending.ticket, self._clock.now(), keep)
            if not keep:
                self.forget(pending)

    def forget(self, pending: Pending) -> None:
        """Nobody can join it any more; unless it runs, nothing is left of it."""
        if pending.ticket.state is not State.RUNNING:
            pending.ticket.payload = None  # without this cycle it is gone at once, and never garbage to collect
            self._claims.release(pending)
        if pending.key is not None and self._by_key.get(pending.key) is pending:
            del self._by_key[pending.key]

    def _remove(self, attempt: Attempt) -> None:
        attempt.pending.attempts.remove(attempt)
        self._close(attempt)

    def _close(self, attempt: Attempt) -> None:
        del self._guarded[attempt.number]
        self.waiting -= 1
        if self.waiting == 0:
            for idle in self._drains:
                if not idle.done():
                    idle.set_result(None)
            self._drains.clear()

    # ------------------------------------------------------------------ answers

    def give(self, pending: Pending, result: Result | RequestError) -> None:
        """Give every attempt that waits this answer, and keep it for those to come."""
        # Before anyone is answered: the next request on a connection may have the same key. Writing comes later.
        self._claims.settle(pending, result)
        attempts, pending.attempts = pending.attempts, []
        if not attempts:
            return
        self._scheduler.withdraw(pending.ticket)
        self.forget(pending)
        for attempt in attempts:
            self._close(attempt)
            _deliver(attempt, result)

    def give_up(self, pending: Pending, reason: str, retry_after_s: float | None = None) -> None:
        """The policy will not run this request: the members it has, its fallback, or a refusal, now."""
        if not pending.attempts:
            self.forget(pending)
        elif pending.best is not None:
            self._events.emit(Degraded(pending.info.name, 1, Quality.PARTIAL, reason))
            self.give(pending, pending.best)
        elif pending.info.has_fallback:
            pending.is_falling = True
            self.forget(pending)
            for attempt in list(pending.attempts):
                self._fall_back(attempt, reason)
        else:
            self.give(pending, self._refusal(pending.ticket, reason, retry_after_s))

    def _refusal(self, ticket: Ticket, reason: str, retry_after_s: float | None = None) -> RequestError:
        if reason == "removed":
            return RequestError("the model is no longer served", code="unknown_model")
        if reason == "crashes_worker":
            return CrashesWorker("workers died or hung on this request alone, so it is not tried again for a while")
        if reason == "too_long":
            return BadInput("this request is longer than the model takes; send a shorter one", code="too_long")
        if reason not in _REFUSALS:
            where = "while it was computed" if ticket.state is State.RUNNING else "in the queue"
            if ticket.payload is not None and ticket.payload.is_elsewhere:
                where = "while another server computed it"
            return DeadlineMissed(f"the deadline came {where}")
        wait_s = self._scheduler.retry_after_s(self._clock.now()) if retry_after_s is None else retry_after_s
        return Refusal(_REFUSALS[reason], code=reason, retry_after_s=wait_s)

    def _finish(self, attempt: Attempt, result: Result | RequestError) -> None:
        """Answer one attempt; the request itself goes on only for others that wait for it."""
        pending, ticket = attempt.pending, attempt.pending.ticket
        # While it runs, a better answer may come of it for those who wait elsewhere.
        if pending.is_claimed and is_worth_keeping(result) and ticket.state is not State.RUNNING:
            assert isinstance(result, Result)
            self._claims.keep(pending, result)
        self._remove(attempt)
        if not pending.attempts:
            is_running = ticket.state is State.RUNNING
            if not (is_running and pending.key is not None and isinstance(result, RequestError)):
                self._scheduler.withdraw(ticket)
            # While it runs a retry may still join it: the same work is not done twice.
            if not is_running:
                self.forget(pending)
        _deliver(attempt, result)

    # ------------------------------------------------------------------ fallbacks

    def _fall_back(self, attempt: Attempt, reason: str) -> None:
        attempt.is_last_chance = True
        self._arm(attempt)
        asked = self._clock.now()

        def done(outcome: Outcome | None) -> None:
            now = self._clock.now()
            self._fallback_time.observe(now - asked)
            if attempt.number not in self._guarded:
                return  # the model, or the guard, was faster
            if outcome is None:
                self._finish(attempt, self._refusal(attempt.pending.ticket, reason))
                return
            info = attempt.pending.info
            self._events.emit(Degraded(info.name, 1, Quality.FALLBACK, reason))
            waited_s = now - attempt.request.arrived
            result = Result(outcome, Quality.FALLBACK, Source.COMPUTED, 0, info.members, 0, waited_s)
            self._finish(attempt, result)

        self._helper.fallback(attempt.pending.info.name, attempt.request.body, done)

    # ------------------------------------------------------------------ the guard

    def strain(self, *, is_on: bool) -> None:
        """Processes are being started, or are up."""
        self.margin.is_strained = is_on
        self._beat(0.0, self._clock.now())

    def _beat(self, late_s: float, now: float) -> None:
        """The process was woken so late: what is kept free follows, for those who wait already as for those to come."""
        self.margin.woke(late_s, now)
        margin_s = self._scheduler.margin_s = self.margin.seconds
        if margin_s > _WORTH_ARMING * self._armed_with_s + _WORTH_ARMING_S:
            self._armed_with_s = margin_s
            self._arm_all(now)
        else:
            # What is armed too early is armed again when it fires.
            self._armed_with_s = min(self._armed_with_s, margin_s)

    def _arm_all(self, now: float) -> None:
        """Set every guard earlier; those whose time has come by that fire now."""
        for attempt in self._guarded.values():
            attempt.guard_at = min(attempt.guard_at, self._guard_at(attempt))
        self._guards[:] = [(attempt.guard_at, number) for number, attempt in self._guarded.items()]
        heapify(self._guards)
        if self._guards and self._guards[0][0] < self._timer_at:
            self._set_timer(self._guards[0][0])
        if self._timer_at <= now:
            self._on_timer()

    def _guard_at(self, attempt: Attempt) -> float:
        """When this attempt must be given what there is; earlier by a fallback's time where one would be needed."""
        request = attempt.request
        margin = self.margin_of(request)
        if attempt.pending.info.has_fallback and attempt.pending.best is None and not attempt.is_last_chance:
            limit_s = request.deadline - request.arrived
            most_s = max(_MOST_OF_A_LIMIT * limit_s, min(_HALF_A_LIMIT * limit_s, _ROUND_TRIP_S))
            margin += min(self._fallback_time.seconds, most_s)
        return request.deadline - margin

    def margin_of(self, request: Request) -> float:
        """What is kept free before this request's deadline."""
        limit_s = request.deadline - request.arrived
        least_s = min(_LEAST_OF_A_LIMIT * limit_s, _ENOUGH_S)
        return min(max(self.margin.seconds, least_s), _MOST_OF_A_LIMIT * limit_s)

    def _arm(self, attempt: Attempt) -> None:
        at = attempt.guard_at = self._guard_at(attempt)
        heappush(self._guards, (at, attempt.number))
        if at < self._timer_at:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        """One timer serves all guards: most requests are answered long before theirs, and cost only a heap entry."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf
        now, guards = self._clock.now(), self._guards
        if guards and guards[0][1] in self._guarded:
            self.margin.observe(max(0.0, now - guards[0][0]))  # once a firing: a pause is one accident, not many
        while guards and (guards[0][0] <= now or guards[0][1] not in self._guarded):
            at, number = heappop(guards)
            attempt = self._guarded.get(number)
            if attempt is not None and attempt.guard_at == at:
                self._guard(attempt, now)
        if len(guards) > 2 * self.waiting + 1024:
            guards[:] = [entry for entry in guards if entry[1] in self._guarded]
            heapify(guards)
        if guards:
            self._set_timer(guards[0][0])

    def _guard(self, attempt: Attempt, now: float) -> None:
        pending, at = attempt.pending, self._guard_at(attempt)
        if now < at:  # a partial answer has come meanwhile, and needs no fallback's time
            self._arm(attempt)
            return
        if pending.best is not None:
            self._events.emit(Degraded(pending.info.name, 1, Quality.PARTIAL, "guard"))
            self._finish(attempt, pending.best)
        elif pending.info.has_fallback and not attempt.is_last_chance:
            self._fall_back(attempt, "guard")
        else:
            self._finish(attempt, self._refusal(pending.ticket, "guard"))


def _deliver(attempt: Attempt, result: Result | RequestError) -> None:
    # A fallback is computed for each attempt by itself.
    if attempt.has_joined and isinstance(result, Result) and result.quality is not Quality.FALLBACK:
        result = msgspec.structs.replace(result, source=Source.JOINED)
    attempt.deliver(result)
