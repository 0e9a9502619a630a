"""One unique request and its attempts: sent, answered or given up, sent again, until it is over.

Times are points on the client's clock. Latencies and timeouts count from the moment an attempt should have been sent,
so a client that is late itself does not flatter the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from timebound.clock import Clock
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.client import Call, Client, Reply


class End(StrEnum):
    """How an attempt ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    LOST = "lost"


@dataclass(slots=True)
class Exchange:
    """A request as bytes, and the test that its answer must pass; the status is looked at before."""

    request: bytes
    is_right: Callable[[Reply], bool] | None = None
    # How large the input is, where that varies.
    size: int = 0


@dataclass(slots=True)
class Attempt:
    """One sending of a request: when it should leave, when the client came to it, when its bytes left."""

    intended: float
    begun: float = 0.0
    sent: float = 0.0
    latency: float = 0.0
    end: End = End.LOST
    status: int = 0
    quality: str = ""
    source: str = ""
    members: int = 0
    is_right: bool = True
    asked_to_wait: bool = False
    why: str = ""  # it was lost


@dataclass(slots=True)
class Question:
    """One unique request: when it came up, and its attempts in order."""

    intended: float
    size: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def last(self) -> Attempt:
        """The attempt that decided it."""
        return self.attempts[-1]

    @property
    def latency(self) -> float:
        """From the first attempt's intended time to the end of the last attempt."""
        last = self.attempts[-1]
        return last.intended + last.latency - self.intended


@dataclass(frozen=True)
class Manners:
    """How clients behave: how long they wait for an attempt, and what they do then."""

    timeout_s: float
    resends: int = 0


Done = Callable[[Question], None]


class Asker:
    """Asks questions over a client; every one of them ends, since every attempt times out."""

    resent = frozenset((End.TIMED_OUT, End.LOST))
    """What is sent again, as often as manners allow."""

    def __init__(self, client: Client, manners: Manners, alarm: Alarm, clock: Clock) -> None:
        self._client = client
        self._manners = manners
        self.alarm = alarm
        self.clock = clock
        # In order of their timeout, because all have the same length.
        self._under_way: dict[Flight, None] = {}
        self._is_watching = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def under_way(self) -> int:
        """Questions that are not over."""
        return len(self._under_way)

    def ask(self, exchange: Exchange, intended: float, done: Done) -> None:
        """Ask one question; `done` is called when it is over."""
        self.attempt(Question(intended, exchange.size), exchange, intended, done)

    async def finished(self) -> None:
        """Wait until nothing is under way; nothing more may be asked."""
        if self.under_way:
            self._idle = self.alarm.future()
            await self._idle

    def stop(self) -> int:
        """Forget what is under way, without a word to those who asked; says how many questions that were."""
        left = self.under_way
        for flight in self._under_way:
            flight.is_over = True
        self._under_way.clear()
        return left

    def attempt(self, question: Question, exchange: Exchange, intended: float, done: Done) -> None:
        """Send a question's request, for the first time or again."""
        attempt = Attempt(intended, self.clock.now())
        question.attempts.append(attempt)
        flight = Flight(self, question, exchange, attempt, done)
        self._under_way[flight] = None
        if not self._is_watching:
            self._is_watching = True
            self.alarm.at(intended + self._manners.timeout_s, self._expire)
        self._client.send(flight)

    def _expire(self) -> None:
        """Give up the attempts whose time is over, then sleep until the next one's."""
        now, timeout_s = self.clock.now(), self._manners.timeout_s
        while self._under_way:
            flight = next(iter(self._under_way))
            due = flight.attempt.intended + timeout_s
            if now < due:
                self.alarm.at(due, self._expire)
                return
            self._client.abandon(flight)
            self.ended(flight, End.TIMED_OUT)
        self._is_watching = False

    # ------------------------------------------------------------------ called by flights

    def answered(self, flight: Flight, reply: Reply) -> None:
        if flight.is_over:
            return
        attempt = flight.attempt
        attempt.status = reply.status
        if not 200 <= reply.status < 300:
            self.ended(flight, End.REFUSED)
            return
        attempt.quality, attempt.source, attempt.members = reply.quality, reply.source, reply.members
        is_right = flight.exchange.is_right
        attempt.is_right = is_right is None or is_right(reply)
        # A reply that the client found only after the time was up is late, even if its timer was later still.
        is_late = self.clock.now() > attempt.intended + self._manners.timeout_s
        self.ended(flight, End.TIMED_OUT if is_late else End.ANSWERED)

    def ended(self, flight: Flight, end: End) -> None:
        if flight.is_over:
            return
        flight.is_over = True
        del self._under_way[flight]
        attempt, question = flight.attempt, flight.question
        attempt.end, attempt.latency = end, self.clock.now() - attempt.intended
        if end in self.resent and len(question.attempts) <= self._manners.resends:
            self.send_again(flight)
            return
        flight.done(question)
        if self._idle is not None and not self._idle.done() and not self.under_way:
            self._idle.set_result(None)

    def send_again(self, flight: Flight) -> None:
        """Another attempt, now."""
        self.attempt(flight.question, flight.exchange, self.clock.now(), flight.done)


class Flight(Call):
    """An attempt under way."""

    __slots__ = ("_asker", "attempt", "done", "exchange", "is_over", "question")

    def __init__(self, asker: Asker, question: Question, exchange: Exchange, attempt: Attempt, done: Done) -> None:
        super().__init__(exchange.request)
        self._asker = asker
        self.question = question
        self.exchange = exchange
        self.attempt = attempt
        self.done = done
        self.is_over = False

    def sent(self) -> None:
        self.attempt.sent = self._asker.clock.now()

    def answered(self, reply: Reply) -> None:
        self._asker.answered(self, reply)

    def lost(self, why: str) -> None:
        self.attempt.why = why
        self._asker.ended(self, End.LOST)
