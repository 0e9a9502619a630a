"""The attempts that wait, and their guards.

Each attempt has a guard, a timer shortly before its deadline, that gives the best there is then. So nobody is answered
late, whatever the predictions were worth. What the best is, `answers.py` says.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

import msgspec

from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.requests.claims import Claims
from timebound.requests.margin import Margin, Pulse
from timebound.requests.request import Attempt, Phase, Request
from timebound.requests.unwaited import Unwaited
from timebound.scheduler.scheduler import Scheduler
from timebound.types import Deliver, Quality, Question, Result, Source

_MOST_OF_A_LIMIT = 0.1
"""No more than this share of a request's time is kept free at its end, for writing and for its fallback each."""

_HALF_A_LIMIT, _ROUND_TRIP_S = 0.5, 0.002
"""Of a short limit more is kept free for a fallback, up to half: to and from another process takes what it takes."""

_LEAST_OF_A_LIMIT, _ENOUGH_S = 0.01, 0.02
"""Of a long limit this share is kept free, up to so many seconds: it costs little, and stalls come unasked."""

_WORTH_ARMING, _WORTH_ARMING_S = 1.25, 0.002
"""Guards that are set are moved only if so much more is to be kept free than when they were set: it costs a heap."""


class Attempts:
    """Who waits for what. Every attempt that is added gets exactly one delivery, unless it is dropped."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        margin_s: float,
        claims: Claims,
        is_busy: Callable[[], object],
        max_queue: int,
    ) -> None:
        self._scheduler = scheduler
        self._claims = claims
        self._clock = clock
        self._loop = loop
        self.watch: Callable[[float, float], None] = lambda late_s, now: None
        """Called at every beat of the pulse, with how late it was and the time."""
        self.margin = Margin(margin_s)
        self.fallback_time = Margin(0.020, floor_s=0.010)
        self.by_key: dict[tuple[str, str], Request] = {}
        """The requests with a key that another attempt can join."""
        self.unwaited = Unwaited(max_queue, self._let_go)
        self._drains: list[asyncio.Future[None]] = []
        self._guards: list[tuple[float, int]] = []  # a heap of when and whom; whoever is answered is skipped
        self._most_guards = 1024
        self._guarded: dict[int, Attempt] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._armed_with_s = margin_s
        self.pulse = Pulse(self._beat, is_needed=lambda: bool(self._guarded or is_busy()), clock=clock, loop=loop)

    @property
    def waiting(self) -> int:
        """How many attempts wait."""
        return len(self._guarded)

    def add(self, request: Request, question: Question, deliver: Deliver, *, has_joined: bool = False) -> Attempt:
        """One more client waits for `request`."""
        if not self.pulse.is_running:
            self.pulse.start()
            self._keep_free(0.0, self._clock.now())  # nobody has waited for a while: old stalls are forgotten
        attempt = Attempt(next(self._numbers), question, deliver, request, has_joined)
        self._guarded[attempt.number] = attempt
        request.attempts.append(attempt)
        if request.key is not None:
            self.by_key.setdefault(request.key, request)
        self.arm(attempt)
        return attempt

    def _let_go(self, request: Request) -> None:
        self._scheduler.withdraw(request)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """Nobody can join it any more; unless it runs, nothing is left of it."""
        if request.left_by is not None:
            self.unwaited.remove(request)
        if request.phase is not Phase.RUNNING:
            if request.phase is not Phase.FALLING:
                request.phase = Phase.DONE
            if request.owns_key:
                self._claims.release(request)
        if request.key is not None and self.by_key.get(request.key) is request:
            del self.by_key[request.key]

    def forget_unwanted(self, requests: Iterable[Request]) -> None:
        """The same for those kept for a retry that did not come before their batch was over."""
        for request in requests:
            if not request.attempts and request.phase is Phase.ACCEPTED:
                self.forget(request)

    def remove(self, attempt: Attempt) -> None:
        attempt.request.attempts.remove(attempt)
        self._close(attempt)

    def _close(self, attempt: Attempt) -> None:
        del self._guarded[attempt.number]
        if not self._guarded:
            for idle in self._drains:
                if not idle.done():
                    idle.set_result(None)
            self._drains.clear()

    def give(self, request: Request, result: Result | RequestError) -> None:
        """Give every attempt that waits this answer, and keep it for those to come."""
        # Before anyone is answered: the next request on a connection may have the same key. Writing comes later.
        if request.owns_key:
            self._claims.settle(request, result)
        attempts, request.attempts = request.attempts, []
        if not attempts:
            return
        self._scheduler.withdraw(request)
        self.forget(request)
        for attempt in attempts:
            self._close(attempt)
            deliver(attempt, result)

    @abstractmethod
    def give_best(self, attempt: Attempt, reason: str) -> None:
        """One attempt's time is up: give it the best there is."""

    # ------------------------------------------------------------------ deadlines

    def due(self, question: Question) -> float:
        """The deadline for the scheduler, which keeps its whole margin before it: of a short limit that is too much."""
        return question.deadline + self._scheduler.margin_s - self.margin_of(question)

    def margin_of(self, question: Question) -> float:
        """What is kept free before this attempt's deadline."""
        limit_s, margin_s = question.deadline - question.arrived, self.margin.seconds
        if margin_s < _ENOUGH_S and margin_s < (least_s := _LEAST_OF_A_LIMIT * limit_s):  # without calls: for everyone
            return least_s if least_s < _ENOUGH_S else _ENOUGH_S
        most_s = _MOST_OF_A_LIMIT * limit_s
        return margin_s if margin_s < most_s else most_s

    # ------------------------------------------------------------------ the guard

    def _guard_at(self, attempt: Attempt) -> float:
        """When this attempt must be given what there is; earlier by a fallback's time where one would be needed."""
        question, request = attempt.question, attempt.request
        margin = self.margin_of(question)
        if request.info.has_fallback and request.best is None and not attempt.is_last_chance:
            limit_s = question.deadline - question.arrived
            most_s = max(_MOST_OF_A_LIMIT * limit_s, min(_HALF_A_LIMIT * limit_s, _ROUND_TRIP_S))
            margin += min(self.fallback_time.seconds, most_s)
        return question.deadline - margin

    def arm(self, attempt: Attempt) -> None:
        at = attempt.guard_at = self._guard_at(attempt)
        heappush(self._guards, (at, attempt.number))
        if len(self._guards) > self._most_guards:
            self._forget_answered()
        if at < self._timer_at:
            self._set_timer(at)

    def _forget_answered(self) -> None:
        """Else guards of those who are answered would stay until their deadlines, and then go all at once."""
        self._guards[:] = [entry for entry in self._guards if entry[1] in self._guarded]
        heapify(self._guards)
        self._most_guards = 2 * len(self._guards) + 1024

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
            if attempt is None or attempt.guard_at != at:
                continue
            if now < self._guard_at(attempt):  # a partial answer has come meanwhile, and needs no fallback's time
                self.arm(attempt)
            else:
                self.give_best(attempt, "guard")
        if guards:
            self._set_timer(guards[0][0])

    def _beat(self, late_s: float, now: float) -> None:
        self._keep_free(late_s, now)
        self.watch(late_s, now)

    def _keep_free(self, late_s: float, now: float) -> None:
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


def deliver(attempt: Attempt, result: Result | RequestError) -> None:
    """Give one attempt its answer."""
    # A fallback is computed for each attempt by itself.
    if attempt.has_joined and isinstance(result, Result) and result.quality is not Quality.FALLBACK:
        result = msgspec.structs.replace(result, source=Source.JOINED)
    try:
        attempt.deliver(result)
    except Exception:  # its own trouble: neither the batch it was in nor the others who wait may suffer
        logging.getLogger("timebound.requests").exception("an answer was not taken")
