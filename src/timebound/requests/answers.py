"""What those who wait get if it is not the full answer.

Best first: the members that are done when time is up or the backlog needs the slot; the model's fallback; a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from timebound.errors import BadInput, CrashesWorker, DeadlineMissed, Refusal, RequestError
from timebound.events import Degraded, Events
from timebound.requests.attempts import Attempts, deliver
from timebound.requests.claims import is_worth_keeping
from timebound.requests.crowd import MANY, Crowd
from timebound.requests.floor import Floor
from timebound.requests.margin import EVERY_S
from timebound.requests.request import Attempt, Phase, Request
from timebound.scheduler.scheduler import Scheduler
from timebound.types import Outcome, Quality, Result, Source

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


class Answers(Attempts):
    """Attempts that are given up in time, each with the best it can have."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        helper: Helper,
        events: Events,
        floor: Floor,
        **wiring: Any,
    ) -> None:
        super().__init__(scheduler, **wiring)
        self._helper = helper
        self._events = events
        self._floor = floor
        self._crowd = Crowd()

    def _beat(self, late_s: float, now: float) -> None:
        super()._beat(late_s, now)
        if len(self._guarded) > MANY and not self._floor.is_moving(now):
            for attempt in self._crowd.due(self._guarded.values(), now + EVERY_S):
                self.give_best(attempt, "guard")

    async def drained(self) -> None:
        """Return when no attempt waits."""
        if self._guarded:
            idle = self._loop.create_future()
            self._drains.append(idle)
            await idle

    def queued(self) -> list[Request]:
        """The requests somebody waits for that have not started."""
        requests = {id(attempt.request): attempt.request for attempt in self._guarded.values()}
        return [request for request in requests.values() if request.phase is Phase.QUEUED]

    def strain(self, *, is_on: bool) -> None:
        """Processes are being started, or are up."""
        self.margin.is_strained = is_on
        self._keep_free(0.0, self._clock.now())

    def drop(self, attempt: Attempt, client: str) -> None:
        """The client has left. Its request is dropped before it runs, unless a retry may come for it by its key."""
        request = attempt.request
        if attempt.number not in self._guarded:
            return
        self.remove(attempt)
        if request.attempts:
            self.follow(request)
            return
        keep = request.key is not None and request.phase in (Phase.QUEUED, Phase.RUNNING)
        keep = keep and not request.is_suspect  # a worker is risked only for somebody who waits
        self._scheduler.abandon(request, keep=keep)
        if keep:
            self.unwaited.add(request, client)
        else:
            self.forget(request)

    def earliest(self, request: Request) -> float:
        """The first deadline of those who wait for it to be computed; who has asked for a fallback does no longer."""
        waiting = [attempt for attempt in request.attempts if not attempt.is_last_chance]
        return min((self.due(attempt.question) for attempt in waiting), default=request.deadline)

    def follow(self, request: Request) -> None:
        """Somebody waits no more: the request has the time of those who still do, and keeps its rank."""
        deadline = self.earliest(request)
        if request.phase is Phase.QUEUED and deadline > request.deadline:
            self._scheduler.renew(request, deadline, is_retry=request.is_retry)
        elif request.phase not in (Phase.QUEUED, Phase.RUNNING):
            request.deadline = deadline

    def give_up(
        self,
        request: Request,
        reason: str,
        retry_after_s: float | None = None,
        predicted_s: float | None = None,
    ) -> None:
        """The policy will not run this request: the members it has, its fallback, or a refusal, now."""
        if not request.attempts:
            self.forget(request)
        elif request.best is not None:
            self._events.emit(Degraded(request.info.name, 1, Quality.PARTIAL, reason))
            self.give(request, because(request.best, reason))
        elif request.info.has_fallback:
            request.phase = Phase.FALLING
            self.forget(request)
            for attempt in [attempt for attempt in request.attempts if not attempt.is_last_chance]:
                self._fall_back(attempt, reason)
        else:
            self.give(request, self._refusal(request, reason, retry_after_s, predicted_s))

    def give_up_first(self, request: Request, reason: str) -> bool:
        """Give up only those who wait for it with the least time, if others have more; whether there are others."""
        waiting = [attempt for attempt in request.attempts if not attempt.is_last_chance]
        late = [attempt for attempt in waiting if self.due(attempt.question) <= request.deadline]
        if len(late) == len(waiting):
            return False
        for attempt in late:
            self.give_best(attempt, reason)
        request.deadline = self.earliest(request)
        return True

    def give_unfinished(self, request: Request, result: Result, reason: str) -> None:
        """No more members come, and those that ran make no answer: an earlier one, its fallback, or the error."""
        if request.attempts and (request.best is not None or request.info.has_fallback):
            self.give_up(request, reason)
        else:
            failed = msgspec.structs.replace(result.outcome, code="model_failed")
            self.give(request, request.best or msgspec.structs.replace(result, outcome=failed))

    def leave_off(self, request: Request) -> None:
        """Nobody waits for what runs any more, and it is ended: its key stands for what there is, and none joins it."""
        self._scheduler.withdraw(request)
        if request.owns_key and request.best is not None:
            self._claims.settle(request, because(request.best, "guard"))
        self.forget(request)

    def refuse_pieces(self, request: Request, why: RequestError) -> None:
        """More pieces have come than are kept: that is an error, for those who have seen them too."""
        request.pieces = None
        self.give(request, why)
        self.leave_off(request)

    def give_best(self, attempt: Attempt, reason: str) -> None:
        """One attempt's time is up."""
        request = attempt.request
        if request.best is not None:
            self._events.emit(Degraded(request.info.name, 1, Quality.PARTIAL, reason))
            self._finish(attempt, because(request.best, reason))
        elif request.info.has_fallback and not attempt.is_last_chance:
            self._fall_back(attempt, reason)
        else:
            self._finish(attempt, self._refusal(request, reason))

    def _fall_back(self, attempt: Attempt, reason: str) -> None:
        attempt.is_last_chance = True
        self.arm(attempt)
        asked, out = self._clock.now(), self._crowd.asked()

        def done(outcome: Outcome | None) -> None:
            now = self._clock.now()
            self.fallback_time.observe(self._crowd.answered(now - asked, out, self.fallback_time.seconds))
            if attempt.number not in self._guarded:
                return  # the model, or the guard, was faster
            if outcome is None:
                self._finish(attempt, self._refusal(attempt.request, reason))
                return
            info = attempt.request.info
            self._events.emit(Degraded(info.name, 1, Quality.FALLBACK, reason))
            waited_s = now - attempt.question.arrived
            made = (outcome, Quality.FALLBACK, Source.COMPUTED, 0, info.members, 0, waited_s)
            result = Result(*made, version=info.version, reason=reason)
            self._finish(attempt, result)

        self._helper.fallback(attempt.request.info.name, attempt.question.body, done)

    def _finish(self, attempt: Attempt, result: Result | RequestError) -> None:
        """Answer one attempt; the request itself goes on only for others that wait for it."""
        request = attempt.request
        is_running = request.phase is Phase.RUNNING
        # While it runs, a better answer may come of it for those who wait elsewhere.
        if request.owns_key and is_worth_keeping(result) and not is_running:
            assert isinstance(result, Result)
            self._claims.keep(request, result)
        self.remove(attempt)
        if request.attempts:
            self.follow(request)
        else:
            if not (is_running and request.key is not None and isinstance(result, RequestError)):
                self._scheduler.withdraw(request)
            # While it runs a retry may still join it: the same work is not done twice.
            if not is_running:
                self.forget(request)
        deliver(attempt, result)

    def _refusal(
        self, request: Request, reason: str, retry_after_s: float | None = None, predicted_s: float | None = None
    ) -> RequestError:
        if reason == "removed":
            return RequestError("the model is no longer served", code="unknown_model")
        if reason == "crashes_worker":
            return CrashesWorker(
                "workers died or hung on this request or on others like it, so it is not tried again for a while"
            )
        if reason == "too_long":
            return BadInput("this request is longer than the model takes; send a shorter one", code="too_long")
        if reason not in _REFUSALS:
            where = "while it was computed" if request.phase is Phase.RUNNING else "in the queue"
            if request.phase is Phase.ELSEWHERE:
                where = "while another server computed it"
            elif request.phase is Phase.FETCHING:
                where = "while what it needs was fetched"
            missed = DeadlineMissed(f"the deadline came {where}")
            if request.phase is Phase.RUNNING:
                missed.run = self._floor.run_of(request)
            elif request.phase is Phase.QUEUED:
                missed.predicted_s = self._scheduler.retry_after_s(self._clock.now())
            return missed
        wait_s = self._scheduler.retry_after_s(self._clock.now()) if retry_after_s is None else retry_after_s
        refusal = Refusal(_REFUSALS[reason], code=reason, retry_after_s=wait_s)
        refusal.predicted_s = wait_s if predicted_s is None else predicted_s  # what waits goes first
        return refusal


def because(best: Result, reason: str) -> Result:
    """The answer of the members that are done, given for this reason."""
    return msgspec.structs.replace(best, reason=reason)
