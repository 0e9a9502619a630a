"""Closed-loop measurements with the lab's client: every answer checked, prebuilt requests."""

import asyncio
import json
import shutil
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, cycle

import uvloop

from benchmarks.tools.texts import TextSample
from benchmarks.tools.workload import ECHO_SUM, ECHO_VALUES, FALLBACK_ANSWER, Sample
from benchmarks.tools.wrk import run_wrk
from timebound.clock import MonotonicClock
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.attempts import Asker, End, Exchange, Manners, Question
from timebound.lab.load.client import Address, Client, Reply, fetch
from timebound.lab.load.health import raise_file_limit
from timebound.lab.load.loops import ClosedLoop
from timebound.lab.simulate import quantile

HOST = "127.0.0.1"
WARM_UP_S = 0.15
# A server that answers nothing for this long after a measurement should have ended has hung.
PATIENCE_S = 20.0
# Longer than any measurement: those end as a whole when a server hangs.
FOR_EVER_S = 3600.0
# As many as it takes: nothing is to wait in the client.
MOST_CONNECTIONS = 100_000


@dataclass(frozen=True)
class Load:
    """What one measurement saw; errors (wrong answer, other status, lost connection) are not in rps."""

    rps: float
    p50_ms: float
    p99_ms: float
    errors: int
    client_cpu: float
    # Of the tenth of the requests with the largest inputs.
    long_p99_ms: float = 0.0
    # Right answers of less than full quality; not in rps either.
    degraded: int = 0


def local_address(port: int) -> Address:
    """A server on this machine."""
    return Address(HOST, port, HOST, f"{HOST}:{port}")


class Traffic:
    """Gives the next exchange to send, for ever. Each request has its own uuid, so that none is a repeat."""

    def __init__(self, path: str, port: int, headers: str = "") -> None:
        self.path = path
        self.port = port
        self.address = local_address(port)
        self.connections = 0  # that the last measurement opened
        self._more_headers = headers  # each ended by CRLF

    def next(self) -> Exchange:
        raise NotImplementedError

    def _head(self, length: int) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n{self._more_headers}\r\n"
        ).encode()


class EchoTraffic(Traffic):
    """Always the same eight numbers."""

    def __init__(self, port: int, *, prefix: str = "") -> None:
        super().__init__(f"{prefix}/predictions/echo", port)
        self.body = json.dumps({"values": ECHO_VALUES})
        self._exchange = Exchange(self._head(len(self.body)) + self.body.encode(), _is_echo_sum)

    def next(self) -> Exchange:
        return self._exchange


class EnsembleTraffic(Traffic):
    """The sample pictures in turn. An answer of the first k members must be right for these k."""

    # One for all instances: a uuid seen in an earlier measurement would be a repeat as well.
    _numbers = count()

    def __init__(self, port: int, samples: Sequence[Sample], headers: str = "") -> None:
        super().__init__("/predictions/ensemble", port, headers)
        self._samples = samples
        self._tails = [f'","image":"{sample.image}"}}'.encode() for sample in samples]
        opening = b'{"uuid":"'
        self._heads = [self._head(len(opening) + 12 + len(tail)) + opening for tail in self._tails]

    def next(self) -> Exchange:
        number = next(self._numbers)
        which = number % len(self._samples)
        uuid = f"{number:012x}"
        request = b"".join((self._heads[which], uuid.encode(), self._tails[which]))
        return Exchange(request, lambda reply: _is_answer(uuid, self._samples[which], reply))


def _is_answer(uuid: str, sample: Sample, reply: Reply) -> bool:
    quality = reply.quality
    if quality == "full":
        answer = sample.answer
    else:
        answer = sample.answers[reply.members - 1] if quality == "partial" else FALLBACK_ANSWER
    return bool(json.loads(reply.body) == {"uuid": uuid, "answer": answer})


class TextTraffic(Traffic):
    """The sample texts in turn."""

    def __init__(self, port: int, samples: Sequence[TextSample]) -> None:
        super().__init__("/predictions/text", port)
        self._exchanges = cycle([self._exchange(sample) for sample in samples])

    def next(self) -> Exchange:
        return next(self._exchanges)

    def _exchange(self, sample: TextSample) -> Exchange:
        body = json.dumps({"text": sample.text}).encode()
        answer = {"text": sample.answer}
        request = self._head(len(body)) + body
        return Exchange(request, lambda reply: bool(json.loads(reply.body) == answer), len(sample.text))


def _is_echo_sum(reply: Reply) -> bool:
    return bool(json.loads(reply.body) == {"sum": ECHO_SUM})


def answers_right(traffic: Traffic) -> bool:
    """Ask once over a connection of its own; False as well when nobody listens yet."""
    exchange = traffic.next()
    try:
        reply = uvloop.run(fetch(traffic.address, exchange.request, PATIENCE_S))
    except (ConnectionError, TimeoutError):
        return False
    return reply.status == 200 and is_right(exchange, reply)


def is_right(exchange: Exchange, reply: Reply) -> bool:
    """Whether the answer passes the exchange's test."""
    return exchange.is_right is not None and exchange.is_right(reply)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Window:
    """Collects what completes from the first completion in the measured time to the first after it.

    Batches complete in bursts; counting from burst to burst keeps a short run from gaining or losing one.
    """

    def __init__(self, seconds: float) -> None:
        self._opens = time.perf_counter() + WARM_UP_S
        self._closes = self._opens + seconds
        self._first = self._last = 0.0
        # Seconds, and the size of the input.
        self.latencies: list[tuple[float, int]] = []
        self.errors = 0
        self.degraded = 0
        self.is_over = False

    def complete(self, question: Question) -> None:
        """A question is over."""
        now = time.perf_counter()
        if now < self._opens or self.is_over:
            return
        last = question.last
        is_first = not self._first
        # Failures count as time too: two answers among thousands of refusals are no burst of two.
        self._first, self._last = self._first or now, now
        if last.end is not End.ANSWERED or last.status != 200 or not last.is_right:
            self.errors += 1
        elif last.quality != "full":
            self.degraded += 1
        elif not is_first:
            self.latencies.append((question.latency, question.size))
        self.is_over = now >= self._closes

    def load(self, client_cpu: float) -> Load:
        """What was seen."""
        elapsed = self._last - self._first
        if not self.latencies or not elapsed:
            return Load(0.0, 0.0, 0.0, self.errors, client_cpu, degraded=self.degraded)
        latencies = sorted(latency for latency, _ in self.latencies)
        bound = sorted(size for _, size in self.latencies)[int(len(latencies) * 0.9)]
        of_long = sorted(latency for latency, size in self.latencies if size >= bound)
        return Load(
            rps=len(latencies) / elapsed,
            p50_ms=quantile(latencies, 0.5) * 1000,
            p99_ms=quantile(latencies, 0.99) * 1000,
            errors=self.errors,
            client_cpu=client_cpu,
            long_p99_ms=quantile(of_long, 0.99) * 1000,
            degraded=self.degraded,
        )


async def _clients(traffic: Traffic, concurrency: int, seconds: float) -> Window:
    window = Window(seconds)
    # What is under way at the end is still waited for: work left behind would slow the next contestant.
    async with asyncio.timeout(WARM_UP_S + seconds + PATIENCE_S), asking(traffic, Manners(FOR_EVER_S)) as asker:
        await ClosedLoop(concurrency, seconds=WARM_UP_S + seconds).run(asker, traffic.next, window.complete)
    return window


@asynccontextmanager
async def asking(traffic: Traffic, manners: Manners, kind: type[Asker] = Asker) -> AsyncIterator[Asker]:
    """Who sends this traffic."""
    raise_file_limit()
    clock = MonotonicClock()
    alarm = Alarm(asyncio.get_running_loop(), clock)
    client = Client(traffic.address, clock, most_connections=MOST_CONNECTIONS)
    try:
        yield kind(client, manners, alarm, clock)
        traffic.connections = client.connections
    finally:
        alarm.close()
        await client.close()


def measure(traffic: Traffic, concurrency: int, seconds: float) -> Load:
    """Keep `concurrency` requests under way for that long; TimeoutError when the server hangs."""
    began, cpu = time.perf_counter(), time.process_time()
    window = uvloop.run(_clients(traffic, concurrency, seconds))
    return window.load((time.process_time() - cpu) / (time.perf_counter() - began))


def measure_echo(traffic: EchoTraffic, concurrency: int, seconds: int) -> Load:
    """The same for the echo, with wrk where it is installed: somewhat cheaper, but it reads statuses only."""
    if not shutil.which("wrk"):
        return measure(traffic, concurrency, seconds)
    url = f"http://{HOST}:{traffic.port}{traffic.path}"
    seen = run_wrk(url, concurrency, seconds, traffic.body)
    return Load(seen.rps, seen.p50_ms, seen.p99_ms, seen.errors, seen.cpu)
