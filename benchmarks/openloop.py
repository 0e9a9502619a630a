"""An open-loop client: requests come when they come, whatever the server does; who waits too long asks again.

An attempt that has no answer at its deadline is abandoned (the connection is closed) and the same request is sent
again at once; an error status is answered by sending again too. Deadlines and latencies count from the moment an
attempt should have been sent, so a client that is late itself does not flatter the server.
"""

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

import uvloop

from benchmarks.load import HOST, PATIENCE_S, Exchange, Reply, Traffic, split

DEADLINE_S = 0.25
RESENDS = 2
# The longest that a client heeds Retry-After; what asks for more is counted.
MOST_RETRY_AFTER_S = 0.05
# uvloop's timers count in milliseconds and round: this keeps them from going off early.
ROUNDING_S = 0.0005


class End(StrEnum):
    """How an attempt ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    LOST = "lost"


@dataclass(slots=True)
class Attempt:
    """One sending of a request; times in seconds since the run began, latency from `intended`."""

    intended: float
    sent: float = 0.0
    latency: float = 0.0
    end: End = End.LOST
    status: int = 0
    quality: str = ""
    members: int = 0
    is_right: bool = True
    asked_to_wait: bool = False


@dataclass(slots=True)
class Question:
    """One unique request: when it came up, and its attempts in order."""

    intended: float
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def answer(self) -> Attempt | None:
        """The attempt that brought an answer, if one did; always the last."""
        last = self.attempts[-1]
        return last if last.end is End.ANSWERED else None

    @property
    def latency(self) -> float:
        """From the first attempt's intended time to the end of the last attempt."""
        last = self.attempts[-1]
        return last.intended + last.latency - self.intended


@dataclass(frozen=True)
class Record:
    """All questions of one run, and what the client itself cost (in cores)."""

    questions: list[Question]
    seconds: float
    client_cpu: float
    connections: int


@dataclass(frozen=True)
class Phase:
    """A stretch of arrivals at one mean rate."""

    rate: float
    seconds: float


def poisson(phases: Sequence[Phase], seed: int) -> list[float]:
    """Arrival times from 0 on."""
    source = random.Random(seed)
    times: list[float] = []
    begins = 0.0
    for phase in phases:
        now = begins + source.expovariate(phase.rate)
        while now < begins + phase.seconds:
            times.append(now)
            now += source.expovariate(phase.rate)
        begins += phase.seconds
    return times


class _Flight:
    """An attempt under way."""

    __slots__ = ("attempt", "exchange", "expiry", "is_over", "question")

    def __init__(self, question: Question, exchange: Exchange, attempt: Attempt) -> None:
        self.question = question
        self.exchange = exchange
        self.attempt = attempt
        self.expiry: asyncio.TimerHandle | None = None
        self.is_over = False


class _Wire(asyncio.Protocol):
    """One connection: carries one flight at a time."""

    def __init__(self, client: "_Client") -> None:
        self._client = client
        self._received = b""
        self.flight: _Flight | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it
        self.is_open = True

    def send(self, flight: _Flight) -> None:
        self.flight = flight
        flight.attempt.sent = self._client.now()
        self._transport.write(flight.exchange.request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        reply = split(self._received)
        if reply is None:
            return
        self._received = b""
        flight, self.flight = self.flight, None
        if b"connection: close" in reply.head:
            self._transport.close()
        else:
            self._client.release(self)
        if flight is not None:
            self._client.answered(flight, reply)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        flight, self.flight = self.flight, None
        if flight is not None:
            self._client.ended(flight, End.LOST)

    def abandon(self) -> None:
        self.flight = None
        self._transport.abort()


class _Client:
    def __init__(self, traffic: Traffic, times: Sequence[float]) -> None:
        self._traffic = traffic
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Wire] = []
        self._carriers: dict[_Flight, _Wire] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._unfinished = len(times)
        self._finished = self._loop.create_future()
        self._began = 0.0
        self.questions: list[Question] = []
        self.connections = 0

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def run(self) -> None:
        self._began = time.perf_counter() + 0.01
        if not self._times:
            return
        self._at(self._times[0], self._arrive)
        try:
            await asyncio.wait_for(self._finished, self._times[-1] + PATIENCE_S)
        finally:
            for wire in self._idle:
                wire.abandon()

    def _at(self, when: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, when - self.now() + ROUNDING_S), call, *arguments)

    def _arrive(self) -> None:
        """Send what is due, then sleep until the next arrival."""
        now = self.now()
        while len(self.questions) < len(self._times):
            intended = self._times[len(self.questions)]
            if intended > now:
                self._at(intended, self._arrive)
                return
            question = Question(intended)
            self.questions.append(question)
            self._attempt(question, self._traffic.next(), intended)

    def _attempt(self, question: Question, exchange: Exchange, intended: float) -> None:
        attempt = Attempt(intended)
        question.attempts.append(attempt)
        flight = _Flight(question, exchange, attempt)
        flight.expiry = self._at(intended + DEADLINE_S, self._expire, flight)
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                self._carry(wire, flight)
                return
        task = self._loop.create_task(self._connect(flight))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, flight: _Flight) -> None:
        try:
            _, wire = await self._loop.create_connection(lambda: _Wire(self), HOST, self._traffic.port)
        except OSError:
            self.ended(flight, End.LOST)
            return
        self.connections += 1
        if flight.is_over:
            self.release(wire)
        else:
            self._carry(wire, flight)

    def _carry(self, wire: _Wire, flight: _Flight) -> None:
        self._carriers[flight] = wire
        wire.send(flight)

    def release(self, wire: _Wire) -> None:
        self._idle.append(wire)

    def _expire(self, flight: _Flight) -> None:
        due = flight.attempt.intended + DEADLINE_S
        if self.now() < due:
            flight.expiry = self._at(due, self._expire, flight)
            return
        wire = self._carriers.get(flight)
        if wire is not None:
            wire.abandon()
        self.ended(flight, End.TIMED_OUT)

    def answered(self, flight: _Flight, reply: Reply) -> None:
        attempt = flight.attempt
        attempt.status = reply.status
        if reply.status == 200:
            attempt.quality, attempt.members = reply.quality, reply.members
            attempt.is_right = flight.exchange.is_right(reply)
            # A reply that the client found only after the time was up is late, even if its timer was later still.
            is_late = self.now() > attempt.intended + DEADLINE_S
            self.ended(flight, End.TIMED_OUT if is_late else End.ANSWERED)
        else:
            self.ended(flight, End.REFUSED, _retry_after_s(reply))

    def ended(self, flight: _Flight, end: End, wait_s: float = 0.0) -> None:
        if flight.is_over:
            return
        flight.is_over = True
        self._carriers.pop(flight, None)
        if flight.expiry is not None:
            flight.expiry.cancel()
        now, attempt, question = self.now(), flight.attempt, flight.question
        attempt.end, attempt.latency = end, now - attempt.intended
        if end is End.ANSWERED or len(question.attempts) > RESENDS:
            self._unfinished -= 1
            if not self._unfinished:
                self._finished.set_result(None)
            return
        attempt.asked_to_wait = wait_s > MOST_RETRY_AFTER_S
        again = now + min(wait_s, MOST_RETRY_AFTER_S)
        if wait_s:
            self._at(again, self._attempt, question, flight.exchange, again)
        else:
            self._attempt(question, flight.exchange, again)


def _retry_after_s(reply: Reply) -> float:
    try:
        return float(reply.header(b"retry-after") or 0)
    except ValueError:  # a date: as good as none for a client in a hurry
        return 0.0


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run ahead of the server's processes where that is allowed, and without pauses for garbage.

    A client on another machine would not wait for the server's cores. Ordinary priorities do not help: here a busy
    process is interrupted for one of them only every 4 ms, and that would be taken for the server's lateness.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    gc.collect()
    gc.disable()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)
        gc.enable()


async def _drive(traffic: Traffic, times: Sequence[float]) -> _Client:
    client = _Client(traffic, times)
    await client.run()
    return client


def drive(traffic: Traffic, phases: Sequence[Phase], seed: int) -> Record:
    """Send what arrives in these phases and wait for the last answer; TimeoutError when the client is stuck."""
    times = poisson(phases, seed)
    with _undisturbed():
        began, cpu = time.perf_counter(), time.process_time()
        client = uvloop.run(_drive(traffic, times))
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    return Record(client.questions, sum(phase.seconds for phase in phases), share, client.connections)
