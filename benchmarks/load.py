"""A closed-loop HTTP client that costs little: keep-alive, prebuilt requests, every answer checked."""

import asyncio
import json
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

import uvloop

from benchmarks.workload import ECHO_SUM, ECHO_VALUES, Sample

HOST = "127.0.0.1"
WARM_UP_S = 0.15
# A server that answers nothing for this long after a measurement should have ended has hung.
PATIENCE_S = 20.0
RECONNECT_S = 0.01

WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = [[%s]]
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
    local e = summary.errors
    local failed = e.connect + e.read + e.write + e.status + e.timeout
    local form = '\\n{"n": %%d, "us": %%d, "p50": %%d, "p99": %%d, "errors": %%d}\\n'
    local p50, p99 = latency:percentile(50), latency:percentile(99)
    io.write(string.format(form, summary.requests, summary.duration, p50, p99, failed))
end
"""


@dataclass(frozen=True)
class Load:
    """What one measurement saw; errors (wrong answer, other status, lost connection) are not in rps."""

    rps: float
    p50_ms: float
    p99_ms: float
    errors: int
    client_cpu: float


@dataclass(frozen=True)
class Exchange:
    """A request as bytes, and the test that its answer must pass."""

    request: bytes
    is_right: Callable[[bytes], bool]


class Traffic:
    """Gives the next exchange to send, for ever. Each request has its own uuid, so that none is a repeat."""

    def __init__(self, path: str, port: int) -> None:
        self.path = path
        self.port = port

    def next(self) -> Exchange:
        raise NotImplementedError

    def _head(self, length: int) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


class EchoTraffic(Traffic):
    """Always the same eight numbers."""

    def __init__(self, port: int) -> None:
        super().__init__("/predictions/echo", port)
        self.body = json.dumps({"values": ECHO_VALUES})
        self._exchange = Exchange(self._head(len(self.body)) + self.body.encode(), _is_echo_sum)

    def next(self) -> Exchange:
        return self._exchange


class EnsembleTraffic(Traffic):
    """The sample pictures in turn."""

    # One for all instances: a uuid seen in an earlier measurement would be a repeat as well.
    _numbers = count()

    def __init__(self, port: int, samples: Sequence[Sample]) -> None:
        super().__init__("/predictions/ensemble", port)
        self._samples = samples
        self._tails = [f'","image":"{sample.image}"}}'.encode() for sample in samples]
        opening = b'{"uuid":"'
        self._heads = [self._head(len(opening) + 12 + len(tail)) + opening for tail in self._tails]

    def next(self) -> Exchange:
        number = next(self._numbers)
        which = number % len(self._samples)
        uuid = f"{number:012x}"
        expected = {"uuid": uuid, "answer": self._samples[which].answer}
        request = b"".join((self._heads[which], uuid.encode(), self._tails[which]))
        return Exchange(request, lambda body: bool(json.loads(body) == expected))


def _is_echo_sum(body: bytes) -> bool:
    return bool(json.loads(body) == {"sum": ECHO_SUM})


def answers_right(traffic: Traffic) -> bool:
    """Ask once over a connection of its own; False as well when nobody listens yet."""
    exchange = traffic.next()
    try:
        with socket.create_connection((HOST, traffic.port), timeout=PATIENCE_S) as connection:
            connection.sendall(exchange.request)
            received = b""
            while (reply := _split(received)) is None:
                chunk = connection.recv(65536)
                if not chunk:
                    return False
                received += chunk
    except OSError:
        return False
    return reply.status == 200 and exchange.is_right(reply.body)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class _Reply:
    status: int
    body: bytes


def _split(received: bytes) -> _Reply | None:
    # None while the answer is incomplete. All servers here send Content-Length, so chunks are not read.
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return None
    _, named, rest = head.lower().partition(b"content-length:")
    length = int(rest.split(b"\r\n", 1)[0]) if named else 0
    return _Reply(int(head[9:12]), body) if len(body) >= length else None


class _Window:
    """Collects what completes from the first completion in the measured time to the first after it.

    Batches complete in bursts; counting from burst to burst keeps a short run from gaining or losing one.
    """

    def __init__(self, seconds: float) -> None:
        self._opens = time.perf_counter() + WARM_UP_S
        self._closes = self._opens + seconds
        self._first = self._last = 0.0
        self.latencies: list[float] = []
        self.errors = 0
        self.is_over = False

    def complete(self, sent: float, is_right: bool) -> None:
        now = time.perf_counter()
        if now < self._opens or self.is_over:
            return
        if not is_right:
            self.errors += 1
        elif not self._first:
            self._first = self._last = now
        else:
            self.latencies.append(now - sent)
            self._last = now
        self.is_over = now >= self._closes

    def load(self, client_cpu: float) -> Load:
        elapsed = self._last - self._first
        if not self.latencies or not elapsed:
            return Load(0.0, 0.0, 0.0, self.errors, client_cpu)
        self.latencies.sort()
        middle, late = (self.latencies[int(len(self.latencies) * share)] * 1000 for share in (0.5, 0.99))
        return Load(len(self.latencies) / elapsed, middle, late, self.errors, client_cpu)


class _Connection(asyncio.Protocol):
    """One closed-loop client: sends, waits for the answer, sends again until the window is over."""

    def __init__(self, traffic: Traffic, window: _Window) -> None:
        self._traffic = traffic
        self._window = window
        self._received = b""
        self._exchange: Exchange | None = None
        self._sent = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        reply = _split(self._received)
        if reply is None or self._exchange is None:
            return
        self._received = b""
        self._window.complete(self._sent, reply.status == 200 and self._exchange.is_right(reply.body))
        self._exchange = None
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange is not None:
            self._window.complete(self._sent, False)
        if not self.closed.done():
            self.closed.set_result(None)

    def _send(self) -> None:
        # What is under way at the end is still waited for: work left behind would slow the next contestant.
        if self._window.is_over:
            self._transport.close()
            return
        self._exchange = self._traffic.next()
        self._sent = time.perf_counter()
        self._transport.write(self._exchange.request)


async def _client(traffic: Traffic, window: _Window) -> None:
    loop = asyncio.get_running_loop()
    while not window.is_over:
        try:
            _, connection = await loop.create_connection(lambda: _Connection(traffic, window), HOST, traffic.port)
            await connection.closed
        except OSError:
            window.complete(0.0, False)
        if not window.is_over:
            await asyncio.sleep(RECONNECT_S)


async def _clients(traffic: Traffic, concurrency: int, seconds: float) -> _Window:
    window = _Window(seconds)
    async with asyncio.timeout(WARM_UP_S + seconds + PATIENCE_S), asyncio.TaskGroup() as clients:
        for _ in range(concurrency):
            clients.create_task(_client(traffic, window))
    return window


def measure(traffic: Traffic, concurrency: int, seconds: float) -> Load:
    """Keep `concurrency` requests under way for that long; TimeoutError when the server hangs."""
    began, cpu = time.perf_counter(), time.process_time()
    window = uvloop.run(_clients(traffic, concurrency, seconds))
    return window.load((time.process_time() - cpu) / (time.perf_counter() - began))


def measure_echo(traffic: EchoTraffic, concurrency: int, seconds: int) -> Load:
    """The same for the echo, with wrk where it is installed: cheaper by far, but it reads statuses only."""
    if not shutil.which("wrk"):
        return measure(traffic, concurrency, seconds)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % traffic.body)
        script.flush()
        url = f"http://{HOST}:{traffic.port}{traffic.path}"
        flags = ["-t", "1", "-c", str(concurrency), "-d", f"{seconds}s", "-s", script.name]
        run = subprocess.run(["wrk", *flags, url], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seen = json.loads(run.stdout.strip().splitlines()[-1])
    return Load(
        rps=(seen["n"] - seen["errors"]) / (seen["us"] / 1e6),
        p50_ms=seen["p50"] / 1000,
        p99_ms=seen["p99"] / 1000,
        errors=seen["errors"],
        client_cpu=cpu / (time.perf_counter() - began),
    )
