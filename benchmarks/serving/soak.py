"""Does a server stay as it is over time? Load at 0.7 times the capacity, memory and open files looked at all the while.

The first part (a sixth of the time, five minutes of thirty) is left out: caches fill, allocators settle. After it the
memory of the gateway and of each worker may grow by 2 %; open files, clients' connections aside, may not grow. Memory
is resident bytes, the median of a tenth of the time at both ends. Every request has a key and is kept in the gateway's
own store, which is small, so that it is full before the comparison begins. No process may be replaced, and no answer
lost, late, wrong or given twice. If any of this does not hold, the exit code is 1.
"""

import argparse
import asyncio
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.apps import chaos_app
from benchmarks.serving.chaos import WORKERS, capacity, is_up
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.ledger import Ledger
from benchmarks.tools.load import free_port
from benchmarks.tools.processes import Server
from timebound.clock import MonotonicClock
from timebound.lab.load.processes import process_tree
from timebound.workers.crew import memory_of

LOAD = 0.7
SOAK_S, QUICK_S = 1800.0, 40.0
SETTLING = 1 / 6
ENDS = 0.1
MOST_GROWTH = 0.02
BARS = (
    *zero("lost", "late", "wrong", "answered_twice", "files_grown", "processes_replaced"),
    # Caches still fill and allocators still settle for longer than a short run lasts.
    Bar("gateway_growth_percent", at_most=100 * MOST_GROWTH, is_quick=False),
    Bar("worker_growth_percent", at_most=100 * MOST_GROWTH, is_quick=False),
)
LOOKS = 300
TOLD = 15
"""How often the state is told on the way."""
_ESTABLISHED = "01"

EXAMPLES = """\
examples:
  python benchmarks/serving/soak.py --quick
  python benchmarks/serving/soak.py --seconds 600 --json out.json
"""


class Run:
    """One run: what was seen of each process, look after look."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._seconds: float = options.seconds or (QUICK_S if options.quick else SOAK_S)
        self._now = MonotonicClock().now
        self._memory: dict[int, list[int]] = defaultdict(list)
        self._files: dict[int, list[int]] = defaultdict(list)

    def all(self) -> dict[str, float]:
        with ExitStack() as running:
            port = free_port()
            command = [*timebound("chaos", self._options.serve_args), "--port", str(port), "--workers", str(WORKERS)]
            command += ["--profiles", "none", "--store-memory", "1MB"]
            server = running.enter_context(Server("soak", command, {}, lambda: is_up(port)))
            say(f"{self._seconds:.0f} s")
            ledger = uvloop.run(self._soak(port, server.pid))
            return self._figures(server.pid, ledger)

    async def _soak(self, port: int, gateway: int) -> Ledger:
        ledger = Ledger(chaos_app.DEADLINE_S, self._now, "/predictions/chaos", port)
        sending = asyncio.create_task(self._send(ledger))
        began = self._now()
        for look in range(LOOKS):
            await asyncio.sleep(max(0.0, began + self._seconds * (look + 1) / LOOKS - self._now()))
            for pid in process_tree(gateway):
                self._look(pid, connections_of(port) if pid == gateway else 0)
            if (look + 1) % (LOOKS // TOLD) == 0:
                self._tell(gateway, self._now() - began, len(ledger.entries))
        sending.cancel()
        await ledger.settle()
        return ledger

    def _look(self, pid: int, clients: int) -> None:
        with suppress(OSError):  # it has gone since it was listed
            files = len(list(Path(f"/proc/{pid}/fd").iterdir())) - clients
            self._memory[pid].append(memory_of(pid))
            self._files[pid].append(files)

    def _tell(self, gateway: int, seconds: float, requests: int) -> None:
        now = {pid: looks[-1] / 1e6 for pid, looks in self._memory.items() if _is_alive(pid)}
        others = ", ".join(f"{megabytes:.1f}" for pid, megabytes in now.items() if pid != gateway)
        files = sum(looks[-1] for pid, looks in self._files.items() if pid in now)
        memory = f"gateway {now[gateway]:.1f} MB, others {others} MB"
        say(f"{seconds:.0f} s: {requests} requests, {memory}, {files} open files")

    async def _send(self, ledger: Ledger) -> None:
        due, rng, rate = self._now(), random.Random(self._options.seed), LOAD * capacity()
        while True:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - self._now()))
            ledger.send(len(ledger.entries), "", "none")

    def _figures(self, gateway: int, ledger: Ledger) -> dict[str, float]:
        whole = {pid: looks for pid, looks in self._memory.items() if len(looks) == LOOKS}
        growth = {pid: _growth(looks) for pid, looks in whole.items()}
        workers = [grown for pid, grown in growth.items() if pid != gateway]
        first = int(SETTLING * LOOKS)
        return {
            "seconds": self._seconds,
            **ledger.counts(ledger.entries),
            "gateway_growth_percent": round(100 * growth[gateway], 2),
            "worker_growth_percent": round(100 * max(workers), 2),
            "gateway_mb": round(whole[gateway][-1] / 1e6, 1),
            "worker_mb": round(max(looks[-1] for pid, looks in whole.items() if pid != gateway) / 1e6, 1),
            "open_files": sum(looks[-1] for pid, looks in self._files.items() if pid in whole),
            "files_grown": max(max(looks[first:]) - max(looks[: first + 1]) for looks in self._files.values()),
            "processes_replaced": len(self._memory) - len(whole),
        }


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def connections_of(port: int) -> int:
    """Connections that clients hold to this port: how many there are is theirs to say, and no leak."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows)


def _growth(looks: Sequence[int]) -> float:
    """From the end of the settling to the end, as a share."""
    first, some = int(SETTLING * len(looks)), max(1, int(ENDS * len(looks)))
    before, after = statistics.median(looks[first : first + some]), statistics.median(looks[-some:])
    return after / before - 1.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    parser.add_argument("--seconds", type=float, help=f"default: {SOAK_S:.0f}, quick {QUICK_S:.0f}")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        figures = finish("soak", Run(options).all)
    except Failed as failure:
        return failure.code
    width = max(map(len, figures))
    print("\n".join(f"{name:{width}}  {value:g}" for name, value in figures.items()))
    return conclude("soak", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
