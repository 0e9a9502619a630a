"""A client of several processes that cannot be the bottleneck: so many requests under way, or so many per second."""

import asyncio
import multiprocessing
import random
import re
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tools.pauses_told import Trouble

_MOST_CONNECTIONS = 4000
_MOST_TROUBLES = 20_000
_BEAT_S = 0.01
_CODE = re.compile(rb'"code": ?"(\w+)"')


@dataclass
class Seen:
    """What came back."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    members: Counter[int] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)
    in_time: int = 0
    late: int = 0
    """Answers of any kind that came after the deadline."""
    behind: int = 0
    """Requests that the client sent more than 5 ms after their time."""
    troubles: list[Trouble] = field(default_factory=list)
    """What came late or was no full answer, at times of the monotonic clock."""
    pause_s: float = 0.0
    """The longest that a client's own loop stood still."""
    connect_s: float = 0.0
    """The longest that a connection took to be made: the latencies begin after it."""

    def add(self, other: "Seen") -> None:
        """Take in what another process has seen."""
        self.latencies += other.latencies
        self.statuses += other.statuses
        self.members += other.members
        self.batches += other.batches
        self.in_time += other.in_time
        self.late += other.late
        self.behind += other.behind
        self.troubles += other.troubles
        self.pause_s = max(self.pause_s, other.pause_s)
        self.connect_s = max(self.connect_s, other.connect_s)

    @property
    def total(self) -> int:
        return sum(self.statuses.values())

    def percentile_ms(self, share: float) -> float:
        """Of all latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 if ordered else 0.0

    @property
    def rps(self) -> float:
        """Full answers per second."""
        return self.statuses[200] / self.seconds

    @property
    def mean_members(self) -> float:
        counted = sum(self.members.values())
        return sum(members * count for members, count in self.members.items()) / counted if counted else 0.0

    def __str__(self) -> str:
        sizes = sum(size * count for size, count in self.batches.items()) / max(1, sum(self.batches.values()))
        return (
            f"{self.rps:,.0f}/s p50 {self.percentile_ms(0.5):.2f} p99 {self.percentile_ms(0.99):.2f} ms "
            f"statuses {dict(self.statuses)} members {dict(sorted(self.members.items()))} in time {self.in_time} "
            f"late {self.late} behind {self.behind} batch of an item {sizes:.0f} "
            f"longest pause of a client {self.pause_s * 1e3:.0f} ms, longest connecting {self.connect_s * 1e3:.0f} ms"
        )


@dataclass(frozen=True)
class Target:
    """Where to send what."""

    port: int
    path: str
    bodies: Sequence[bytes]
    media: str
    deadline_s: float

    def requests(self) -> list[bytes]:
        """As they go over the wire."""
        return [
            (
                f"POST {self.path} HTTP/1.1\r\nhost: x\r\ncontent-type: {self.media}\r\n"
                f"timebound-timeout-ms: {self.deadline_s * 1e3:.0f}\r\ncontent-length: {len(body)}\r\n\r\n"
            ).encode()
            + body
            for body in self.bodies
        ]


def closed(target: Target, under_way: int, seconds: float, processes: int) -> Seen:
    """So many requests under way all the time."""
    processes = min(processes, under_way)
    shares = [under_way // processes + (number < under_way % processes) for number in range(processes)]
    return _spread([(target, ("closed", share), seconds, number) for number, share in enumerate(shares)], seconds)


def open_loop(target: Target, rate: float, seconds: float, processes: int) -> Seen:
    """So many requests per second, at random times, whatever comes back."""
    return _spread([(target, ("open", rate / processes), seconds, n) for n in range(processes)], seconds)


def _spread(jobs: Sequence[tuple[Any, ...]], seconds: float) -> Seen:
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    children = [fork.Process(target=_child, args=(queue, *job), daemon=True) for job in jobs]
    for child in children:
        child.start()
    whole = Seen(seconds)
    for _ in children:
        whole.add(queue.get(timeout=seconds + 60))
    for child in children:
        child.join()
    return whole


def _child(queue: Any, target: Target, how: tuple[str, float], seconds: float, number: int) -> None:
    import uvloop

    seen = Seen(seconds)
    drive = _closed(target, int(how[1]), seen, number) if how[0] == "closed" else _open(target, how[1], seen, number)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_beside(_beat(seen), drive))
    queue.put(seen)


async def _beside(beat: Coroutine[Any, Any, None], drive: Coroutine[Any, Any, None]) -> None:
    beating = asyncio.create_task(beat)
    await drive
    beating.cancel()


async def _beat(seen: Seen) -> None:
    while True:
        due = time.perf_counter() + _BEAT_S
        await asyncio.sleep(_BEAT_S)
        seen.pause_s = max(seen.pause_s, time.perf_counter() - due)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.is_new = True


async def _connect(target: Target, seen: Seen) -> _Connection:
    begin = time.perf_counter()
    made = _Connection(*await asyncio.open_connection("127.0.0.1", target.port))
    seen.connect_s = max(seen.connect_s, time.perf_counter() - begin)
    return made


async def _ask(connection: _Connection, request: bytes, target: Target, seen: Seen) -> bool:
    """Send one and take in what comes back; whether the connection may be used again."""
    begin = time.perf_counter()
    connection.writer.write(request)
    head = await connection.reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    body = await connection.reader.readexactly(int(fields.get(b"content-length", b"0")))
    took = time.perf_counter() - begin
    status = int(head[9:12])
    seen.latencies.append(took)
    seen.statuses[status] += 1
    if took > target.deadline_s:
        seen.late += 1
    if (took > target.deadline_s or status != 200) and len(seen.troubles) < _MOST_TROUBLES:
        code = _CODE.search(body) if status != 200 else None
        said = code.group(1).decode() if code else ""
        seen.troubles.append(Trouble(time.monotonic() - took, took, status, said, connection.is_new))
    connection.is_new = False
    if status == 200:
        seen.in_time += took <= target.deadline_s
        members = fields.get(b"timebound-members", b"0/0").partition(b"/")[0]
        seen.members[int(members)] += 1
        seen.batches[int(fields.get(b"timebound-batch", b"0"))] += 1
    return fields.get(b"connection") != b"close"


async def _closed(target: Target, under_way: int, seen: Seen, number: int) -> None:
    requests, stop = target.requests(), time.perf_counter() + seen.seconds

    async def one(offset: int) -> None:
        connection, turn = await _connect(target, seen), offset
        while time.perf_counter() < stop:
            turn += 1
            try:
                is_kept = await _ask(connection, requests[turn % len(requests)], target, seen)
            except (OSError, asyncio.IncompleteReadError):
                seen.statuses[0] += 1
                is_kept = False
            if not is_kept:
                connection.writer.close()
                connection = await _connect(target, seen)
        connection.writer.close()

    await asyncio.gather(*(one(number * 17 + place) for place in range(under_way)))


async def _open(target: Target, rate: float, seen: Seen, number: int) -> None:
    chance, requests = random.Random(number), target.requests()
    idle: list[_Connection] = []
    running: set[asyncio.Task[None]] = set()

    async def one(request: bytes) -> None:
        try:
            connection = idle.pop() if idle else await _connect(target, seen)
            is_kept = await _ask(connection, request, target, seen)
        except (OSError, asyncio.IncompleteReadError):
            seen.statuses[0] += 1
            return
        if is_kept:
            idle.append(connection)
        else:
            connection.writer.close()

    start = time.perf_counter()
    at, turn = start, number * 17
    while at < start + seen.seconds:
        at += chance.expovariate(rate)
        wait = at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        elif wait < -0.005:
            seen.behind += 1
        if len(running) < _MOST_CONNECTIONS:
            turn += 1
            task = asyncio.create_task(one(requests[turn % len(requests)]))
            running.add(task)
            task.add_done_callback(running.discard)
        else:
            seen.statuses[-1] += 1
    if running:
        await asyncio.wait(running, timeout=5.0)
