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
from itertools import count, cycle
from typing import cast

import uvloop

from benchmarks.texts import TextSample
from benchmarks.workload import ECHO_SUM, ECHO_VALUES, FALLBACK_ANSWER, Sample

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
    # Of the tenth of the requests with the largest inputs.
    long_p99_ms: float = 0.0
    # Right answers of less than full quality; not in rps either.
    degraded: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came; the head is in lower case."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: bytes) -> str:
        """The value of a header, empty if it is not there."""
        _, found, rest = self.head.partition(b"\r\n" + name + b":")
        return rest.split(b"\r\n", 1)[0].strip().decode() if found else ""

    @property
    def quality(self) -> str:
        """How much of the model is in it; a server that does not say so gives all."""
        return self.header(b"timebound-quality") or "full"

    @property
    def members(self) -> int:
        """How many members answered; 0 if the server does not say."""
        return int(self.header(b"timebound-members").partition("/")[0] or 0)


@dataclass(frozen=True)
class Exchange:
    """A request as bytes, and the test that its answer must pass; the status is looked at before."""

    request: bytes
    is_right: Callable[[Reply], bool]
    # How large the input is, where that varies.
    size: int = 0


class Traffic:
    """Gives the next exchange to send, for ever. Each request has its own uuid, so that none is a repeat."""

    def __init__(self, path: str, port: int, headers: str = "") -> None:
        self.path = path
        self.port = port
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

    def __init__(self, port: int) -> None:
        super().__init__("/predictions/echo", port)
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
        return Exchange(request, lambda reply: _is_right(uuid, self._samples[which], reply))


def _is_right(uuid: str, sample: Sample, reply: Reply) -> bool:
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
        with socket.create_connection((HOST, traffic.port), timeout=PATIENCE_S) as connection:
            connection.sendall(exchange.request)
            received = b""
            while (reply := split(received)) is None:
                chunk = connection.recv(65536)
                if not chunk:
                    return False
                received += chunk
    except OSError:
        return False
    return reply.status == 200 and exchange.is_right(reply)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def split(received: bytes) -> Reply | None:
    """The answer, or None while it is incomplete. All servers here send Content-Length, so chunks are not read."""
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return None
    head = head.lower()
    _, named, rest = head.partition(b"content-length:")
    length = int(rest.split(b"\r\n", 1)[0]) if named else 0
    return Reply(int(head[9:12]), head, body) if len(body) >= length else None


class _Window:
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

    def complete(self, sent: float, is_right: bool, is_full: bool = True, size: int = 0) -> None:
        now = time.perf_counter()
        if now < self._opens or self.is_over:
            return
        if not is_right:
            self.errors += 1
        elif not is_full:
            self.degraded += 1
        elif not self._first:
            self._first = self._last = now
        else:
            self.latencies.append((now - sent, size))
            self._last = now
        self.is_over = now >= self._closes

    def load(self, client_cpu: float) -> Load:
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


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the sorted values lies; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


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
        reply = split(self._received)
        if reply is None or self._exchange is None:
            return
        self._received = b""
        is_right = reply.status == 200 and self._exchange.is_right(reply)
        self._window.complete(self._sent, is_right, reply.quality == "full", self._exchange.size)
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
    """The same for the echo, with wrk where it is installed: somewhat cheaper, but it reads statuses only."""
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
