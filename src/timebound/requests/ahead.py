"""What is found out before a request waits for a slot: what its model fetches for it, and its size.

A request that fetches holds no slot, and no memory but its own. It does so within its deadline: its guard gives the
fallback in time, and what nobody waits for any more is called off. If the process is lost that fetches, it is asked
again. A model whose class has changed meanwhile is asked for anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol

import msgspec

from timebound.clock import Clock
from timebound.errors import CrashesWorker, Refusal, RequestError
from timebound.requests.answers import Answers, Helper
from timebound.requests.losses import Losses
from timebound.requests.models import Models
from timebound.requests.request import Phase, Request
from timebound.scheduler.scheduler import Scheduler
from timebound.types import ModelInfo, Outcome

_MOST_LOSSES = 3
"""Processes lost while a request fetched, until it is not asked again: it may be what they die of."""
_WORLDS = ("model_failed", "deadline_missed")
"""Why it is not fetched that a fallback may be given for; anything else is the request's own fault."""
_LOST = ("process_gone", "gone_beside", "ended_process")
_APART, _MOST_APART_S = 0.5, 1.0
"""Of its time, for which one that may have ended a process leaves the next one to the others."""
_COUNTED = 16_384
"""Bytes of what was fetched that are worth counting."""


class Fetcher(Protocol):
    """Who runs `fetch` of the user's own: the fetching process."""

    def fetch(self, model: str, body: bytes, done: Callable[[Outcome, float], None]) -> int: ...
    def call_off(self, number: int) -> None: ...


class _Nobody:
    def fetch(self, model: str, body: bytes, done: Callable[[Outcome, float], None]) -> int:
        done(Outcome(b"", code="process_gone"), 1.0)
        return 0

    def call_off(self, number: int) -> None:
        pass


NOBODY = _Nobody()
"""Where nothing can be fetched."""


class _Away(msgspec.Struct, eq=False):
    """A request that fetches."""

    losses: int = 0
    number: int = 0
    timer: asyncio.TimerHandle | None = None


class Ahead:
    """Holds requests until they are ready to wait for a slot; then `offer` gets them."""

    def __init__(
        self,
        models: Models,
        answers: Answers,
        losses: Losses,
        *,
        scheduler: Scheduler,
        helper: Helper,
        fetcher: Fetcher,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        compute: Callable[[Request], None],
        offer: Callable[[Request, float], None],
    ) -> None:
        self._models = models
        self._answers = answers
        self._losses = losses
        self._scheduler = scheduler
        self._helper = helper
        self._fetcher = fetcher
        self._clock = clock
        self._loop = loop
        self._compute = compute
        self._offer = offer
        self._away: dict[int, _Away] = {}  # by the request's number
        self.hold: Callable[[], Any] = lambda: None
        """Something that stands for bytes in memory, see `admission.Held.hold`; None counts nothing."""

    def begin(self, request: Request) -> None:
        """Find out what there is to find out of it."""
        if request.info.has_fetch:
            self._fetch(request, _Away())
        else:
            request.phase = Phase.SIZING
            self._helper.size(request.info.name, request.body, partial(self._sized, request))

    def _sized(self, request: Request, size: float | None) -> None:
        if not request.attempts:
            return
        request.phase = Phase.ACCEPTED
        if size == inf:  # the model's own way to say: not this one
            self._answers.give_up(request, "too_long")
            return
        request.size = size if size is not None and 0 < size < 1e15 else 1.0
        self._offer(request, self._clock.now())

    # ------------------------------------------------------------------ what it fetches

    def left(self, request: Request) -> None:
        """One who waited for it waits no more."""
        if not request.attempts and (away := self._away.pop(request.seq, None)) is not None:
            self._call_off(away)

    def add_model(self, info: ModelInfo) -> None:
        """A model is served, perhaps by another class than before: what was fetched for that one is fetched anew."""
        known = self._models.infos.get(info.name)
        self._models.add(info)
        if known is None or not (known.has_fetch or info.has_fetch):
            return
        while self._answers.unwaited.make_place(info.name):  # who comes for one of these asks for it anew
            pass
        for request in self._answers.queued():
            if request.model == info.name:
                self._scheduler.withdraw(request)
                request.info, request.is_wanted, request.phase = info, True, Phase.ACCEPTED
                self.again(request)

    def remove_model(self, name: str, successor: str | None = None) -> None:
        """It is no longer served: what waits for it goes to its successor, or gets the best there is without it."""
        for request in self._models.remove(name, successor):
            if successor is None:
                self._answers.give_up(request, "removed")
            elif not self.again(request):
                self._offer(request, self._clock.now())

    def again(self, request: Request) -> bool:
        """Its model is another one now: whether something is fetched for it, or was."""
        if not request.is_fetched and not request.info.has_fetch:
            return False
        if request.attempts:
            request.body, request.is_fetched = request.attempts[0].question.body, False
            self._compute(request)
        return True

    def _fetch(self, request: Request, away: _Away) -> None:
        request.phase = Phase.FETCHING
        self._away[request.seq] = away
        away.number = self._fetcher.fetch(request.info.name, request.body, partial(self._fetched, request, away))
        if self._away.get(request.seq) is away:
            self._wait(request, away)

    def _wait(self, request: Request, away: _Away) -> None:
        """Until the last of those who wait has its deadline."""
        until = max(attempt.question.deadline for attempt in request.attempts)
        away.timer = self._loop.call_later(max(0.0, until - self._clock.now()), self._look, request, away)

    def _look(self, request: Request, away: _Away) -> None:
        if self._away.get(request.seq) is not away:
            return
        now = self._clock.now()
        if any(attempt.question.deadline > now for attempt in request.attempts):
            self._wait(request, away)
        else:
            del self._away[request.seq]
            self._call_off(away)

    def _call_off(self, away: _Away) -> None:
        if away.timer is not None:
            away.timer.cancel()
        self._fetcher.call_off(away.number)

    def _fetched(self, request: Request, away: _Away, outcome: Outcome, size: float) -> None:
        is_guilty = outcome.code == "ended_process" and self._losses.has_ended_one(request)
        if self._away.get(request.seq) is not away:
            return  # it was called off
        del self._away[request.seq]
        if away.timer is not None:
            away.timer.cancel()
        if not request.attempts or request.phase is not Phase.FETCHING:
            return  # it was answered meanwhile
        now = self._clock.now()
        request.phase = Phase.ACCEPTED
        if outcome.code not in _LOST:
            self._losses.has_fetched(request)
        info = self._models.infos.get(request.model)
        if info is not None and info is not request.info:
            request.info = info
            self._compute(request)
        elif is_guilty:
            self._answers.give_up(request, "crashes_worker")
        elif outcome.code == "ended_process":
            request.phase = Phase.FETCHING
            apart_s = _APART * max(0.0, self._answers.earliest(request) - now)
            self._loop.call_later(min(apart_s, _MOST_APART_S), self._ask_again, request)
        elif outcome.code == "gone_beside":
            self._compute(request)
        elif outcome.code == "process_gone":
            self._lost(request, away)
        elif outcome.code:
            self._failed(request, outcome)
        else:
            self._go_on(request, outcome.body, size, now)

    def _ask_again(self, request: Request) -> None:
        if request.attempts and request.phase is Phase.FETCHING:  # else it was answered meanwhile
            request.phase = Phase.ACCEPTED
            request.info = self._models.infos.get(request.model, request.info)
            self._compute(request)

    def _lost(self, request: Request, away: _Away) -> None:
        """The process that fetched is gone, or could not take it: ask again, unless it may be what ends them."""
        if not away.number:
            self._answers.give_up(request, "queue_full")
        elif away.losses + 1 < _MOST_LOSSES:
            self._fetch(request, _Away(away.losses + 1))
        elif request.info.has_fallback:
            self._answers.give_up(request, "fetch_failed")
        else:
            self._answers.give(request, CrashesWorker("the processes that fetched for this request died"))

    def _failed(self, request: Request, outcome: Outcome) -> None:
        if outcome.code in _WORLDS and request.info.has_fallback:
            self._answers.give_up(request, "fetch_failed")
            return
        facts = msgspec.json.decode(outcome.body)
        self._answers.give(request, RequestError(facts["detail"], code=outcome.code, field=facts.get("field")))

    def _go_on(self, request: Request, body: bytes, size: float, now: float) -> None:
        """It has all it needs to be prepared."""
        if len(body) > _COUNTED and (hold := self.hold()) is not None:
            if not hold.reach(len(body)):
                detail = "too much of what requests have fetched is in memory now"
                self._answers.give(request, Refusal(detail, code="memory_full", retry_after_s=1))
                return
            request.hold = (request.hold, hold)
        request.body, request.bytes, request.is_fetched = body, len(body), True
        request.arrived = now  # from when it waits for a slot
        request.deadline = self._answers.earliest(request)
        if (self._losses.suspects or self._losses.traits) and self._losses.is_locked_up(request):
            self._answers.give_up(request, "crashes_worker")
        else:
            self._sized(request, size)
