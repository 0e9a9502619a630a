"""Whether `timebound bench` can be trusted: against wrk, on a server that stalls, and how much one core can send.

Three parts. `wrk`: the same closed loop on an echo server that works 100 us for each request, in turns of two seconds;
requests/s must agree within 5 %. The median of the ratios of neighbouring turns counts, of the half of the pairs in
which other programs took least of the machine. The server has a session of its own: Linux divides a busy machine among
sessions, so a client in the same one takes from its server what it needs itself, and ours needs more than wrk.
`stall`: a server that stands still for 500 ms, once; the open loop must show it in its 99th percentile, where a closed
loop has it in a handful of requests. `rate`: open loop against the simplest echo server, from one core.
The server is on one core and both clients are on another, as far as there are two. `foreign_cpu` is what other programs
took, in cores. If a bar does not hold, the exit code is 1.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.load import HOST, free_port
from benchmarks.tools.processes import Server, StartError
from benchmarks.tools.wrk import Seen, run_wrk
from timebound.lab.load.processes import ForeignLoad

PARTS = ("wrk", "stall", "rate")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = str(CORES[0]), str(CORES[-1])
CONCURRENCY = 50
# What a request costs the server that both clients ask: enough that the server is the slower of the two.
WORK_US = 100
BODY = '{"values": [0.5, 1.25, -2.0]}'
AGREEMENT = 0.05
STALL_S, STALL_AFTER_S = 0.5, 1.0
STALL_RATE = 200
RATE = 5000
BARS = (
    *zero("bench_failed", "open_loop_failed"),
    # Three pairs of turns are too few to agree within 5 %.
    Bar("bench_over_wrk", at_least=1 - AGREEMENT, at_most=1 + AGREEMENT, is_quick=False),
    # The open loop's 99th percentile shows the stall, a closed loop has it in its slowest requests only.
    Bar("stall_open_loop_p99_ms", at_least=0.8e3 * STALL_S),
    Bar("stall_closed_loop_p99_ms", at_most=0.2e3 * STALL_S),
    Bar("stall_closed_loop_max_ms", at_least=0.8e3 * STALL_S),
    # One core sends and receives this much, and has some of itself left.
    Bar("open_loop_rps", at_least=0.99 * RATE),
    Bar("open_loop_client_cpu", at_most=1.0),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/bench_check.py --quick
  python benchmarks/serving/bench_check.py --json out.json
  python benchmarks/serving/bench_check.py --only wrk --pairs 30
"""


def bench(url: str, *flags: str) -> dict[str, Any]:
    """The first level of a `timebound bench` from the client's core."""
    program = Path(sys.executable).parent / "timebound"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = ["taskset", "-c", CLIENT_CORE, str(program), "bench", url, *flags, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        level: dict[str, Any] = json.loads(file.read_text())["levels"][0]
        return level


def wrk(url: str, concurrency: int, seconds: int, body: str) -> Seen:
    """wrk on the client's core."""
    return run_wrk(url, concurrency, seconds, body, before=("taskset", "-c", CLIENT_CORE))


def echo_server(*flags: str) -> tuple[AbstractContextManager[object], str]:
    """benchmarks/tools/echo_server.py on the server's core, and its URL."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks/tools/echo_server.py"), "--port", str(port), *flags]
    return _pinned("echo server", command, _Listening(port)), f"http://{HOST}:{port}/echo"


def _pinned(name: str, command: Sequence[str], answers: Any) -> Server:
    command = ["taskset", "-c", SERVER_CORE, *command]
    return Server(name, command, {"TIMEBOUND_PROFILES": "none"}, answers, is_apart=True)


class _Listening:
    """Whether somebody listens; unlike a question this does not start the clock of a stall."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


@dataclass(frozen=True)
class Pair:
    """The two clients one after the other, and what others took of the machine meanwhile, in cores."""

    theirs: Seen
    ours: dict[str, float]
    foreign_cpu: float

    @property
    def ratio(self) -> float:
        return self.ours["answered_rps"] / self.theirs.rps


def turn_in_pair(url: str, seconds: int, is_wrk_first: bool) -> Pair:
    """Who begins changes from pair to pair, so that a machine that grows slower or faster favours nobody."""
    foreign = ForeignLoad()
    theirs = wrk(url, CONCURRENCY, seconds, BODY) if is_wrk_first else None
    ours = bench(url, "--clients", str(CONCURRENCY), "--duration", f"{seconds}s", "--body", BODY)["figures"]
    return Pair(theirs or wrk(url, CONCURRENCY, seconds, BODY), ours, foreign.cores())


def agree_with_wrk(pairs: int, seconds: int) -> dict[str, float]:
    """Closed loop, both clients in turn."""
    server, url = echo_server("--work-us", str(WORK_US))
    seen: list[Pair] = []
    with server:
        turn_in_pair(url, 1, is_wrk_first=True)  # both programs and the server are in memory then
        for number in range(pairs):
            seen.append(turn_in_pair(url, seconds, is_wrk_first=number % 2 == 0))
            say(f"wrk: {seen[-1].ratio:.3f} of its requests/s, others took {seen[-1].foreign_cpu:.2f} cores")
    quiet = sorted(seen, key=lambda pair: pair.foreign_cpu)[: (pairs + 1) // 2]
    ratio = median(pair.ratio for pair in quiet)
    theirs, ours = [pair.theirs for pair in quiet], [pair.ours for pair in quiet]
    return {
        "wrk_rps": median(each.rps for each in theirs),
        "bench_rps": median(each["answered_rps"] for each in ours),
        "bench_over_wrk": ratio,
        "bench_over_wrk_all_pairs": median(pair.ratio for pair in seen),
        "wrk_p50_ms": median(each.p50_ms for each in theirs),
        "bench_p50_ms": median(each["p50_ms"] for each in ours),
        "wrk_p99_ms": median(each.p99_ms for each in theirs),
        "bench_p99_ms": median(each["p99_ms"] for each in ours),
        "bench_client_cpu": median(each["client_cpu"] for each in ours),
        "wrk_client_cpu": median(each.cpu for each in theirs),
        "bench_failed": sum(pair.ours["failed"] for pair in seen),
        "counted_foreign_cpu": median(pair.foreign_cpu for pair in quiet),
    }


def show_stall(seconds: int) -> dict[str, float]:
    """The same stall, seen by an open loop and by a closed one.

    The closed loop is our own: wrk makes up the requests that it did not send, from the mean time between them.
    """
    flags = ("--stall", str(STALL_S), "--stall-after", str(STALL_AFTER_S))
    say(f"stall: open loop at {STALL_RATE}/s, the server stands still for {STALL_S * 1000:.0f} ms")
    server, url = echo_server(*flags)
    with server:
        level = bench(
            url, "--rate", str(STALL_RATE), "--arrivals", "constant", "--duration", f"{seconds}s", "--body", "{}"
        )
    say("stall: the same with a closed loop, 4 at a time")
    server, url = echo_server(*flags)
    with server:
        closed = bench(url, "--clients", "4", "--duration", f"{seconds}s", "--body", "{}")["figures"]
    ours = level["figures"]
    return {
        "stall_ms": STALL_S * 1000,
        "stall_open_loop_p90_ms": ours["p90_ms"],
        "stall_open_loop_p99_ms": ours["p99_ms"],
        "stall_open_loop_max_ms": ours["max_ms"],
        "stall_closed_loop_p99_ms": closed["p99_ms"],
        "stall_closed_loop_p99_9_ms": closed["p99_9_ms"],
        "stall_closed_loop_max_ms": closed["max_ms"],
    }


def send_fast(seconds: int) -> dict[str, float]:
    """An open loop at 5,000/s, and a closed one as fast as it goes, from one core."""
    server, url = echo_server()
    with server:
        say(f"rate: open loop at {RATE}/s from core {CLIENT_CORE}")
        flags = ("--duration", f"{seconds}s", "--body", '{"id": "{uuid}"}')
        steady = bench(url, "--rate", str(RATE), "--arrivals", "constant", *flags)["figures"]
        say("rate: closed loop, 64 at a time")
        fastest = bench(url, "--clients", "64", *flags)["figures"]
    return {
        "open_loop_rps": steady["answered_rps"],
        "open_loop_failed": steady["failed"],
        "open_loop_client_cpu": steady["client_cpu"],
        "open_loop_send_lag_p99_ms": steady["client_send_lag_p99_ms"],
        "closed_loop_rps": fastest["answered_rps"],
        "closed_loop_client_cpu": fastest["client_cpu"],
        "closed_loop_rps_per_busy_core": fastest["answered_rps"] / fastest["client_cpu"],
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", PARTS, "parts")
    parser.add_argument("--pairs", type=int, metavar="N", help="turns of each client in the part wrk")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, float]:
    """All parts that were asked for."""
    if "wrk" in options.only and shutil.which("wrk") is None:
        raise StartError("wrk is not installed: apt-get install wrk, or leave it out with --only stall,rate")
    figures: dict[str, float] = {}
    foreign = ForeignLoad()
    if "wrk" in options.only:
        figures |= agree_with_wrk(options.pairs or (6 if options.quick else 20), 2)
    if "stall" in options.only:
        figures |= show_stall(3 if options.quick else 5)
    if "rate" in options.only:
        figures |= send_fast(3 if options.quick else 10)
    return {**figures, "foreign_cpu": foreign.cores()}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        figures = {name: round(value, 4) for name, value in finish("bench_check", lambda: run(options)).items()}
    except Failed as failure:
        return failure.code
    for name, value in figures.items():
        print(f"{name:32}{value:12,.2f}")
    return conclude("bench_check", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
