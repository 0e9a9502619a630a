"""Is nothing lost when everything goes wrong? One server, real processes, faults at random, and a ledger of requests.

Parts: `faults` (workers and understudy killed and stopped, items that crash or hang their worker, one that hogs
memory, Redis killed and paused, reloads, clients that leave, at 0.8 times the capacity) and `reloads` (20 of them in
60 s at 0.7 times). Every request must get exactly one answer, before its deadline, and not a wrong one; the guilty
items alone may be called poison. The model sleeps for a known time, so the capacity is known. One in twenty requests
has a connection of its own that is listened to long after its answer. Times count from the sending of the bytes.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.apps import chaos_app
from benchmarks.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.contestants import ROOT
from benchmarks.ledger import Ledger, Sent, send_and_listen, settle
from benchmarks.load import free_port, local_address
from benchmarks.processes import Server
from benchmarks.services import Redis
from benchmarks.troubles import Troubles
from timebound.clock import MonotonicClock
from timebound.lab.load.client import Client, fetch

PARTS = ("faults", "reloads")
WORKERS = 2
FAULT_LOAD, RELOAD_LOAD = 0.8, 0.7
FAULTS_S, QUICK_FAULTS_S = 600.0, 36.0
RELOADS, RELOADS_S = 20, 60.0
QUICK_RELOADS = 4
PAUSE_S = (0.5, 2.5)
LISTENED = 20
BAD = ("lost", "late", "wrong", "answered_twice")

EXAMPLES = """\
examples:
  python benchmarks/chaos.py --quick
  python benchmarks/chaos.py --seconds 120 --json out.json
  python benchmarks/chaos.py --only reloads
"""


def capacity() -> float:
    """Requests per second of all workers with full batches."""
    size = chaos_app.MAX_BATCH
    return WORKERS * size / (chaos_app.BATCH_S + chaos_app.ITEM_S * size)


class Run:
    """One run; `figures` fills up as parts end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._now = MonotonicClock().now
        self._fault = "none"
        self.figures: dict[str, float] = {}
        self.rows: list[dict[str, object]] = []

    def all(self) -> dict[str, float]:
        for part in self._options.only:
            say(part)
            with ExitStack() as running:
                folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
                app = Path(shutil.copy(ROOT / "benchmarks/apps/chaos_app.py", folder / "app.py"))
                redis = running.enter_context(Redis()) if part == "faults" else None
                port = self._start(running, app, redis)
                troubles = Troubles(port, app, redis, self._options.seed)
                uvloop.run(self._faults(port, troubles) if part == "faults" else self._reloads(port, troubles))
        return self.figures

    def _start(self, running: ExitStack, app: Path, redis: Redis | None) -> int:
        port = free_port()
        command = [str(Path(sys.executable).parent / "timebound"), "serve", str(app), "--port", str(port)]
        command += [
            "--workers",
            str(WORKERS),
            "--profiles",
            "none",
            "--recycle-memory",
            "300MB",
            *self._options.serve_args,
        ]
        command += ["--store", redis.url] if redis else []
        self._server = running.enter_context(Server("chaos", command, {}, lambda: is_up(port)))
        return port

    # ------------------------------------------------------------------ parts

    async def _faults(self, port: int, troubles: Troubles) -> None:
        seconds = self._options.seconds or (QUICK_FAULTS_S if self._options.quick else FAULTS_S)
        made = 0
        async with self._load(port, FAULT_LOAD) as (client, ledger):
            end, faults = self._now() + seconds, troubles.all(client, ledger)
            await asyncio.sleep(1.0)
            while self._now() < end:
                # Each fault once before any comes again.
                for name in self._random.sample(sorted(faults), len(faults)):
                    if self._now() >= end:
                        break
                    self._fault = name
                    made += 1
                    await faults[name]()
                    await asyncio.sleep(self._random.uniform(*PAUSE_S))
            slow = await _slow_at_server(port)
        self._settle("faults", ledger, made)
        self.figures["late_at_server"] = slow
        self.figures["reloads_refused"] = troubles.reloads_refused

    async def _reloads(self, port: int, troubles: Troubles) -> None:
        count = QUICK_RELOADS if self._options.quick or self._options.seconds else RELOADS
        every_s = RELOADS_S / RELOADS
        self._fault = "reload"
        async with self._load(port, RELOAD_LOAD) as (_, ledger):
            began = self._now()
            for number in range(count):
                await asyncio.sleep(max(0.0, began + every_s * number - self._now()))
                await troubles.reload()
            took_s = self._now() - began
        self._settle("reloads", ledger, count)
        self.figures["reloads_refused"] = troubles.reloads_refused
        self.figures["reloads"] = count
        self.figures["reloads_took_s"] = round(took_s, 1)
        self.figures["reloads_failed_requests"] = sum(entry.status != 200 for entry in ledger.entries)
        self.figures["releases_seen"] = len({entry.release for entry in ledger.entries if entry.release})

    # ------------------------------------------------------------------ load

    @asynccontextmanager
    async def _load(self, port: int, load: float) -> AsyncIterator[tuple[Client, Ledger]]:
        """Requests at random times while the block lasts; all of them are settled when it is over."""
        client = Client(local_address(port), MonotonicClock())
        ledger = Ledger(chaos_app.DEADLINE_S, self._now, "/predictions/chaos")
        sending = asyncio.create_task(self._send(client, ledger, port, load * capacity()))
        try:
            yield client, ledger
        finally:
            sending.cancel()
            await settle(ledger, client)

    async def _send(self, client: Client, ledger: Ledger, port: int, rate: float) -> None:
        due, listeners = self._now(), set[asyncio.Task[None]]()
        while True:
            due += self._random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - self._now()))
            n = len(ledger.entries)
            if n % LISTENED:
                client.send(Sent(ledger, n, "", self._fault))
            else:
                task = asyncio.create_task(send_and_listen(ledger, port, n, self._fault))
                listeners.add(task)
                task.add_done_callback(listeners.discard)

    def _settle(self, part: str, ledger: Ledger, faults: int) -> None:
        self._fault = "none"
        self.figures["faults"] = self.figures.get("faults", 0) + faults
        for name, value in ledger.counts(ledger.entries).items():
            self.figures[name] = self.figures.get(name, 0) + value
        self.figures["latest_ms"] = max(
            self.figures.get("latest_ms", 0.0), round(1e3 * max(entry.seconds for entry in ledger.entries), 1)
        )
        for fault in sorted({entry.fault for entry in ledger.entries}):
            counts = ledger.counts(entry for entry in ledger.entries if entry.fault == fault)
            self.rows.append({"part": part, "fault": fault, **counts})
        for entry in ledger.entries:
            if entry.is_wrong or entry.answers != 1 or entry.seconds > ledger.deadline_s:
                say(f"not as it should be: {entry}")


def is_up(port: int) -> bool:
    """Whether all workers are there: with one of two the load would be too much from the start."""
    try:
        reply = uvloop.run(fetch(local_address(port), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 5.0))
    except (ConnectionError, TimeoutError):
        return False
    workers = json.loads(reply.body)["workers"] if reply.status == 200 else []
    return len([worker for worker in workers if worker["is_up"] and not worker["is_understudy"]]) == WORKERS


async def _slow_at_server(port: int) -> float:
    """Requests that took longer than the deadline by the server's own measure: without the way to the client."""
    reply = await fetch(local_address(port), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 5.0)
    name = "timebound_request_seconds"
    found = dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if line.startswith(name))
    in_time = found[f'{name}_bucket{{le="{chaos_app.DEADLINE_S}",model="chaos"}}']
    return float(found[f'{name}_count{{model="chaos"}}']) - float(in_time)


def table(rows: Sequence[dict[str, object]]) -> str:
    """Counts by fault, one line each."""
    columns = ("part", "fault", "requests", "full", "fallback", "refused", *BAD)
    lines = [columns, *[tuple(str(row.get(column, 0)) for column in columns) for row in rows]]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument("--seed", type=int, default=1, help="of the faults and arrivals; default: %(default)s")
    parser.add_argument("--seconds", type=float, help=f"of faults; default: {FAULTS_S:.0f}, quick {QUICK_FAULTS_S:.0f}")
    add_choice(parser, "--only", PARTS, "parts")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(options)
    began = time.monotonic()
    try:
        figures = finish("chaos", run.all)
    except Failed as failure:
        return failure.code
    print(table(run.rows), "\n")
    figures["took_s"] = round(time.monotonic() - began, 1)
    print("  ".join(f"{name} {value:g}" for name, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(figures[name] for name in BAD) or figures.get("reloads_failed_requests") else 0


if __name__ == "__main__":
    sys.exit(main())
