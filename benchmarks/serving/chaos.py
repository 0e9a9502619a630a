"""Is nothing lost when everything goes wrong? One server, real processes, faults at random, and a ledger of requests.

Parts: `faults` (workers and understudy killed and stopped, items that crash or hang their worker, also with another
field each time, one that hogs memory, Redis killed and paused, and all that `honest` has, at 0.8 times the capacity),
`honest` (reloads, also racing each other, clients that leave, also with keys and long limits, requests that take long,
requests sent twice: no worker may be lost by these, `killed_honest`), `firsts` (reloads, where the first batch of each
size takes longer than any but a first one may: no worker may be lost by that, either), `reloads` (20 of them in 60 s at
0.7 times) and `varied` (a deadly item each second, no two alike: how many of the innocent the model does not answer,
`varied_lost_share`; and for how much of the time no worker was up, `varied_none_up_share`: the more slowly they start).
In all of them the first batch of each size takes long in each worker. Every request must get exactly one answer, before
its deadline, and not a wrong one; the guilty items alone may get `crashes_worker`. The model sleeps for a known time:
the capacity is known.

An answer's time is from the giving of the bytes to the system until the kernel has received the answer, by the
kernel's own stamp: what this program needs to notice it is counted apart (`late_by_reader`). A late answer stays late
in every count and fails the run. Where the time went is told for each: which faults came before it, how long the
gateway was ready to run and had no core, by the kernel's account, and how long a watcher process that asks for nothing
waited for one. `late_machine_still` are those whose delay both explain: a machine that others keep busy.

The model tells with each answer which batch it was in, as its worker saw it, and which release of the code prepared,
inferred and finished it: batches with two releases are `mixed_batches`, and an answer of an older release to a request
that was sent when a reload was over is `stale`.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.apps import chaos_app
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.ledger import Entry, Ledger
from benchmarks.tools.load import free_port, local_address
from benchmarks.tools.processes import Server
from benchmarks.tools.services import Redis
from benchmarks.tools.stillness import Stillness
from benchmarks.tools.troubles import ADMIN_PATIENCE_S, Troubles
from timebound.clock import MonotonicClock
from timebound.lab.load.client import fetch

PARTS = ("faults", "honest", "firsts", "reloads", "varied")
WORKERS = 2
FAULT_LOAD, RELOAD_LOAD = 0.8, 0.7
FAULTS_S, QUICK_FAULTS_S = 600.0, 24.0
HONEST_S, QUICK_HONEST_S = 120.0, 8.0
FIRSTS_S, QUICK_FIRSTS_S = 60.0, 12.0
SLOW_FIRST_S = 1.6
"""Three times as long as a batch may take whose like its worker ran before, and longer than any deadline."""
RELOADS, RELOADS_S = 20, 60.0
QUICK_RELOADS = 4
HONEST_LOAD = 0.6
VARIED_S, QUICK_VARIED_S = 60.0, 20.0
VARIED_LOAD = 0.4
VARIED_EVERY_S = 1.0
LOOK_S = 0.05
PAUSE_S, HONEST_PAUSE_S, FIRSTS_PAUSE_S = (0.5, 2.5), (0.2, 0.8), (5.0, 8.0)
BAD = ("lost", "late", "wrong", "answered_twice", "mixed_batches", "stale", "reloads_failed_requests", "killed_honest")
BARS = (*zero(*BAD), Bar("varied_lost_share", at_most=0.01))
STILL_S = 0.008
"""A watcher that asks for nothing and waits longer than this for a core is on a machine that others keep busy."""
LAST_S = 0.4
TOLD = 20
"""So many requests that are not as they should be are told one by one."""

EXAMPLES = """\
examples:
  python benchmarks/serving/chaos.py --quick
  python benchmarks/serving/chaos.py --seconds 120 --json out.json
  python benchmarks/serving/chaos.py --only reloads
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
        self._made: list[tuple[float, str]] = []
        self._stillness = Stillness()
        self._none_up_s = 0.0
        self.figures: dict[str, float] = {}
        self.rows: list[dict[str, object]] = []

    def all(self) -> dict[str, float]:
        for part in self._options.only:
            say(part)
            self._made = []
            with ExitStack() as running:
                folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
                app = Path(shutil.copy(ROOT / "benchmarks/serving/apps/chaos_app.py", folder / "app.py"))
                redis = running.enter_context(Redis()) if part == "faults" else None
                port = self._start(running, app, redis, SLOW_FIRST_S if part == "firsts" else None)
                running.enter_context(self._stillness.beside(self._pid))
                troubles = Troubles(port, app, redis, self._options.seed)
                runs = {
                    "faults": self._faults, "honest": self._honest, "firsts": self._firsts,
                    "reloads": self._reloads, "varied": self._varied,
                }  # fmt: skip
                uvloop.run(runs[part](port, troubles))
        return self.figures

    def _start(self, running: ExitStack, app: Path, redis: Redis | None, first_s: float | None) -> int:
        port = free_port()
        command = [str(Path(sys.executable).parent / "timebound"), "serve", str(app), "--port", str(port)]
        command += ["--workers", str(WORKERS), "--profiles", "none", "--recycle-memory", "300MB"]
        command += ["--store", redis.url] if redis else []
        environment = {} if first_s is None else {"CHAOS_FIRST_S": str(first_s)}
        server = Server("chaos", [*command, *self._options.serve_args], environment, lambda: is_up(port))
        self._pid = running.enter_context(server).pid
        return port

    # ------------------------------------------------------------------ parts

    async def _faults(self, port: int, troubles: Troubles) -> None:
        seconds = self._options.seconds or (QUICK_FAULTS_S if self._options.quick else FAULTS_S)
        async with self._load(port, FAULT_LOAD) as ledger:
            faults = troubles.all(ledger)
            await self._make(faults, seconds, PAUSE_S)
            slow = await _slow_at_server(port)
        self._settle("faults", ledger, troubles)
        for name in sorted(faults):
            self.figures[f"faults_{name}"] = sum(name == made for _, made in self._made)
        self.figures["late_at_server"] = max(0.0, slow - sum(bool(entry.limit_s) for entry in ledger.entries))

    async def _honest(self, port: int, troubles: Troubles) -> None:
        seconds = QUICK_HONEST_S if self._options.quick or self._options.seconds else HONEST_S
        async with self._load(port, HONEST_LOAD) as ledger:
            await self._make(troubles.honest(ledger), seconds, HONEST_PAUSE_S)
        self._settle("honest", ledger, troubles)
        await self._count_killed(port)

    async def _firsts(self, port: int, troubles: Troubles) -> None:
        """New workers again and again, each of which meets every batch size for the first time."""
        seconds = QUICK_FIRSTS_S if self._options.quick or self._options.seconds else FIRSTS_S
        async with self._load(port, HONEST_LOAD) as ledger:
            await self._make({"reload": troubles.reload}, seconds, FIRSTS_PAUSE_S)
        self._settle("firsts", ledger, troubles)
        await self._count_killed(port)

    async def _count_killed(self, port: int) -> None:
        lost = await _metric(port, "timebound_batches_lost_total")
        killed = lost + await _metric(port, "timebound_worker_deaths_total")
        self.figures["killed_honest"] = self.figures.get("killed_honest", 0.0) + killed

    async def _make(
        self, faults: Mapping[str, Callable[[], Awaitable[None]]], seconds: float, pause_s: tuple[float, float]
    ) -> None:
        """Faults for so long, each once before any comes again."""
        end = self._now() + seconds
        await asyncio.sleep(1.0)
        while self._now() < end:
            for name in self._random.sample(sorted(faults), len(faults)):
                if self._now() >= end:
                    break
                self._begin(name)
                await faults[name]()
                await asyncio.sleep(self._random.uniform(*pause_s))

    async def _reloads(self, port: int, troubles: Troubles) -> None:
        count = QUICK_RELOADS if self._options.quick or self._options.seconds else RELOADS
        every_s = RELOADS_S / RELOADS
        async with self._load(port, RELOAD_LOAD) as ledger:
            began = self._now()
            for number in range(count):
                await asyncio.sleep(max(0.0, began + every_s * number - self._now()))
                self._begin("reload")
                await troubles.reload()
            took_s = self._now() - began
        self._settle("reloads", ledger, troubles)
        self.figures["reloads"] = count
        self.figures["reloads_took_s"] = round(took_s, 1)
        self.figures["reloads_failed_requests"] = sum(entry.status != 200 for entry in ledger.entries)

    async def _varied(self, port: int, troubles: Troubles) -> None:
        """A deadly item each second, no two of them alike: how many of the innocent are not answered by the model."""
        seconds = QUICK_VARIED_S if self._options.quick or self._options.seconds else VARIED_S
        async with self._load(port, VARIED_LOAD) as ledger:
            began = self._now()
            watching = asyncio.create_task(self._watch(troubles))
            await asyncio.sleep(1.0)
            while self._now() < began + seconds:
                self._begin("poison_varied")
                await troubles.vary(ledger, 1, VARIED_EVERY_S)
            watching.cancel()
            took_s = self._now() - began
        deaths = await _metric(port, "timebound_worker_deaths_total")
        self._settle("varied", ledger, troubles)
        innocent = [entry for entry in ledger.entries if not entry.harm]
        unserved = [entry for entry in innocent if entry.quality != "full"]
        self.figures |= {
            "varied_innocent": len(innocent),
            "varied_lost": len(unserved),
            "varied_lost_share": round(len(unserved) / len(innocent), 4),
            "varied_none_up_share": round(self._none_up_s / took_s, 4),
            "varied_deaths": deaths,
        }

    async def _watch(self, troubles: Troubles) -> None:
        """Count the time in which no worker is up."""
        since = self._now()
        while True:
            await asyncio.sleep(LOOK_S)
            is_up = any(worker["is_up"] and not worker["is_understudy"] for worker in await troubles.workers())
            self._none_up_s += 0.0 if is_up else self._now() - since
            since = self._now()

    def _begin(self, name: str) -> None:
        self._fault = name
        self._made.append((self._now(), name))

    # ------------------------------------------------------------------ load

    @asynccontextmanager
    async def _load(self, port: int, load: float) -> AsyncIterator[Ledger]:
        """Requests at random times while the block lasts; all of them are settled when it is over."""
        ledger = Ledger(chaos_app.DEADLINE_S, self._now, "/predictions/chaos", port)
        sending = asyncio.create_task(self._send(ledger, load * capacity()))
        try:
            yield ledger
        finally:
            sending.cancel()
            await ledger.settle()

    async def _send(self, ledger: Ledger, rate: float) -> None:
        due = self._now()
        while True:
            due += self._random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - self._now()))
            ledger.send(len(ledger.entries), "", self._fault)

    # ------------------------------------------------------------------ what came of it

    def _settle(self, part: str, ledger: Ledger, troubles: Troubles) -> None:
        self._fault = "none"
        self._stillness.read()
        found = Counter(ledger.counts(ledger.entries))
        found["faults"] = len(self._made)
        late = [entry for entry in ledger.entries if ledger.is_late(entry)]
        found["late_machine_still"] = sum(self._stood_still(entry, ledger.limit_of(entry)) for entry in late)
        found["late_by_reader"] = sum(entry.noticed_s > ledger.limit_of(entry) for entry in ledger.entries) - len(late)
        batches = ledger.batches().values()
        found["batches"] = len(batches)
        found["mixed_batches"] = sum(len({entry.releases for entry in batch}) != 1 for batch in batches)
        found["releases_seen"] = len({entry.releases for entry in ledger.entries if entry.releases})
        found["stale"] = sum(_is_stale(entry, troubles.taken) for entry in ledger.entries)
        found["reloads_refused"] = troubles.reloads_refused
        self.figures["gateway_cpu_s"] = round(self.figures.get("gateway_cpu_s", 0.0) + self._stillness.cpu_s, 2)
        for name, value in found.items():
            self.figures[name] = self.figures.get(name, 0) + value
        self._note_longest("latest_ms", max(entry.seconds for entry in ledger.entries if not entry.limit_s))
        self._note_longest("longest_still_ms", self._stillness.longest_s())
        for fault in sorted({entry.fault for entry in ledger.entries}):
            entries = [entry for entry in ledger.entries if entry.fault == fault]
            times = sum(made == fault for _, made in self._made)
            self.rows.append({"part": part, "fault": fault, "times": times, **ledger.counts(entries)})
        self._tell_bad(ledger)

    def _note_longest(self, name: str, seconds: float) -> None:
        self.figures[name] = max(self.figures.get(name, 0.0), round(1e3 * seconds, 1))

    def _stood_still(self, entry: Entry, deadline_s: float) -> bool:
        """Whether the machine explains that it was late.

        The gateway must have been kept from a core for longer than that, and the watcher, which needs none, as well.
        """
        end = entry.sent + entry.seconds
        waited_s, longest_s = self._stillness.waited_s(entry.sent, end), self._stillness.longest_s(entry.sent, end)
        return entry.seconds - deadline_s < waited_s and longest_s > STILL_S

    def _account(self, start: float, end: float) -> str:
        """How the gateway spent this time, in words."""
        seen = self._stillness
        ran, waited, longest = seen.ran_s(start, end), seen.waited_s(start, end), seen.longest_s(start, end)
        return f"ran {1e3 * ran:.0f} ms, waited {1e3 * waited:.0f} ms for cores (the watcher {1e3 * longest:.0f} ms)"

    def _tell_bad(self, ledger: Ledger) -> None:
        bad = [entry for entry in ledger.entries if ledger.is_bad(entry)]
        for entry in bad[:TOLD]:
            say(f"not as it should be: {entry}")
            end = entry.sent + entry.seconds
            faults = ", ".join(f"{name} {at - end:+.2f} s" for at, name in self._made if -3.0 < at - end < 0)
            say(f"  before its answer: {faults or 'no fault'}")
            say(f"  the gateway in its time {self._account(entry.sent, end)}")
            say(f"  in its last {LAST_S} s {self._account(end - LAST_S, end)}")
        if len(bad) > TOLD:
            say(f"and {len(bad) - TOLD} more")


def _is_stale(entry: Entry, taken: Sequence[tuple[float, int]]) -> bool:
    """Whether an old release answered what was sent when a newer one had taken over."""
    newest = max((release for at, release in taken if at < entry.sent), default=1)
    return bool(entry.releases) and min(entry.releases) < newest


def is_up(port: int) -> bool:
    """Whether all workers are there: with one of two the load would be too much from the start."""
    try:
        reply = uvloop.run(fetch(local_address(port), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 5.0))
    except (ConnectionError, TimeoutError):
        return False
    workers = json.loads(reply.body)["workers"] if reply.status == 200 else []
    return len([worker for worker in workers if worker["is_up"] and not worker["is_understudy"]]) == WORKERS


async def _metric(port: int, name: str) -> float:
    """The sum of a counter, over all its labels."""
    reply = await fetch(local_address(port), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ADMIN_PATIENCE_S)
    lines = [line for line in reply.body.decode().splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def _slow_at_server(port: int) -> float:
    """Requests that took longer than the deadline by the server's own measure: without the way to the client."""
    reply = await fetch(local_address(port), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ADMIN_PATIENCE_S)
    lines = reply.body.decode().splitlines()

    def total(start: str) -> float:
        """Of all versions: requests that were refused before one was chosen have none."""
        begin = f"timebound_request_seconds_{start}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(begin))

    return total('count{model="chaos"') - total(f'bucket{{le="{chaos_app.DEADLINE_S}",model="chaos"')


def table(rows: Sequence[dict[str, object]]) -> str:
    """Counts by fault, one line each."""
    columns = ("part", "fault", "times", "requests", "full", "fallback", "refused", *BAD[:4])
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
    print("  ".join(f"{name} {value:.10g}" for name, value in figures.items()))
    return conclude("chaos", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
