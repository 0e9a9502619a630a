"""Whether `timebound bench` can be trusted: against wrk, on a server that stalls, and how much one core can send.

Three parts. `wrk`: the same closed loop on an echo server that works 50 us for each request, in turns; requests/s must
agree within 5 %.
`stall`: a server that stands still for 500 ms, once; the open loop must show it in its 99th percentile, where a closed
loop has it in a handful of requests. `rate`: open loop against the simplest echo server, from one core.
The server has one core to itself and the client another, as far as there are two. With --realtime both go ahead of all
other programs where that is allowed (it needs root): for machines that are never quiet. Linux takes 50 ms of each
second from such programs, and a client at work all the time loses up to 5 % more by it than one that just started.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.contestants import ROOT
from benchmarks.load import HOST, free_port
from benchmarks.processes import Server
from benchmarks.wrk import Seen, run_wrk
from timebound.lab.load.processes import ForeignLoad

PARTS = ("wrk", "stall", "rate")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = str(CORES[0]), str(CORES[-1])
CONCURRENCY = 50
# What a request costs the server that both clients ask: about what a small real one does.
WORK_US = 50
BODY = '{"values": [0.5, 1.25, -2.0]}'
AGREEMENT = 0.05
STALL_S, STALL_AFTER_S = 0.5, 1.0
STALL_RATE = 200
RATE = 5000
REALTIME = "BENCH_REALTIME"

EXAMPLES = """\
examples:
  python benchmarks/bench_check.py --quick
  python benchmarks/bench_check.py --json out.json
  python benchmarks/bench_check.py --only wrk --rounds 15
"""


@dataclass
class Findings:
    """Flat figures, and the claims that did not hold."""

    figures: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def claim(self, holds: bool, text: str) -> None:
        """Note a claim that does not hold."""
        say(f"  {'yes' if holds else 'NO'}: {text}")
        if not holds:
            self.broken.append(text)


def bench(url: str, *flags: str) -> dict[str, Any]:
    """The first level of a `timebound bench` from the client's core."""
    program = Path(sys.executable).parent / "timebound"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [*pinned(CLIENT_CORE), str(program), "bench", url, *flags, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        level: dict[str, Any] = json.loads(file.read_text())["levels"][0]
        return level


def pinned(core: str) -> list[str]:
    """What keeps a command on one core, and ahead of others if they disturb."""
    return ["taskset", "-c", core, *(["chrt", "-f", "1"] if REALTIME in os.environ else [])]


def wrk(url: str, concurrency: int, seconds: int, body: str) -> Seen:
    """wrk on the client's core."""
    return run_wrk(url, concurrency, seconds, body, before=pinned(CLIENT_CORE))


def echo_server(*flags: str) -> tuple[AbstractContextManager[object], str]:
    """benchmarks/echo_server.py on the server's core, and its URL."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks/echo_server.py"), "--port", str(port), *flags]
    return _pinned("echo server", command, _Listening(port)), f"http://{HOST}:{port}/echo"


def _pinned(name: str, command: Sequence[str], answers: Any) -> Server:
    return Server(name, [*pinned(SERVER_CORE), *command], {"TIMEBOUND_PROFILES": "none"}, answers)


class _Listening:
    """Whether somebody listens; unlike a question this does not start the clock of a stall."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


def agree_with_wrk(rounds: int, seconds: int, findings: Findings) -> None:
    """Closed loop, both clients in turn; the median of the ratios of neighbours counts, so that noise hits both."""
    server, url = echo_server("--work-us", str(WORK_US))
    theirs: list[Seen] = []
    ours: list[dict[str, float]] = []
    with server:
        for number in range(rounds):
            say(f"wrk: round {number + 1} of {rounds}")
            theirs.append(wrk(url, CONCURRENCY, seconds, BODY))
            flags = ("--clients", str(CONCURRENCY), "--duration", f"{seconds}s", "--body", BODY)
            ours.append(bench(url, *flags)["figures"])
    ratios = [own["answered_rps"] / other.rps for own, other in zip(ours, theirs, strict=True)]
    # A drift of the machine favours the second of each pair or the first of the next one.
    ratios += [own["answered_rps"] / other.rps for own, other in zip(ours[:-1], theirs[1:], strict=True)]
    ratio = median(ratios)
    findings.figures |= {
        "wrk_rps": median(each.rps for each in theirs),
        "bench_rps": median(each["answered_rps"] for each in ours),
        "bench_over_wrk": ratio,
        "wrk_p50_ms": median(each.p50_ms for each in theirs),
        "bench_p50_ms": median(each["p50_ms"] for each in ours),
        "wrk_p99_ms": median(each.p99_ms for each in theirs),
        "bench_p99_ms": median(each["p99_ms"] for each in ours),
        "bench_client_cpu": median(each["client_cpu"] for each in ours),
        "wrk_client_cpu": median(each.cpu for each in theirs),
        "bench_failed": sum(each["failed"] for each in ours),
    }
    findings.claim(abs(ratio - 1) <= AGREEMENT, f"requests/s are {ratio:.3f} of wrk's, within {AGREEMENT:.0%}")


def show_stall(seconds: int, findings: Findings) -> None:
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
    findings.figures |= {
        "stall_ms": STALL_S * 1000,
        "stall_open_loop_p90_ms": ours["p90_ms"],
        "stall_open_loop_p99_ms": ours["p99_ms"],
        "stall_open_loop_max_ms": ours["max_ms"],
        "stall_closed_loop_p99_ms": closed["p99_ms"],
        "stall_closed_loop_p99_9_ms": closed["p99_9_ms"],
        "stall_closed_loop_max_ms": closed["max_ms"],
    }
    shown = ours["p99_ms"] >= 0.8 * STALL_S * 1000
    findings.claim(shown, f"the open loop's p99 shows the stall: {ours['p99_ms']:.0f} ms")
    hidden = closed["p99_ms"] < 0.2 * STALL_S * 1000 <= closed["max_ms"]
    findings.claim(hidden, f"a closed loop's p99 hides it: {closed['p99_ms']:.1f} ms (max {closed['max_ms']:.0f} ms)")


def send_fast(seconds: int, findings: Findings) -> None:
    """An open loop at 5,000/s, and a closed one as fast as it goes, from one core."""
    server, url = echo_server()
    with server:
        say(f"rate: open loop at {RATE}/s from core {CLIENT_CORE}")
        flags = ("--duration", f"{seconds}s", "--body", '{"id": "{uuid}"}')
        steady = bench(url, "--rate", str(RATE), "--arrivals", "constant", *flags)["figures"]
        say("rate: closed loop, 64 at a time")
        fastest = bench(url, "--clients", "64", *flags)["figures"]
    findings.figures |= {
        "open_loop_rps": steady["answered_rps"],
        "open_loop_failed": steady["failed"],
        "open_loop_client_cpu": steady["client_cpu"],
        "open_loop_send_lag_p99_ms": steady["client_send_lag_p99_ms"],
        "closed_loop_rps": fastest["answered_rps"],
        "closed_loop_client_cpu": fastest["client_cpu"],
        "closed_loop_rps_per_busy_core": fastest["answered_rps"] / fastest["client_cpu"],
    }
    rate = steady["answered_rps"]
    holds = rate >= 0.99 * RATE and not steady["failed"] and steady["client_cpu"] < 1
    findings.claim(holds, f"one core sends and receives {rate:,.0f}/s, {steady['client_cpu']:.2f} of it busy")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", PARTS, "parts")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each client in the part wrk")
    parser.add_argument("--realtime", action="store_true", help="ahead of other programs, where that is allowed")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Findings:
    """All parts that were asked for."""
    if options.realtime:
        os.environ[REALTIME] = "1"
    findings, foreign = Findings(), ForeignLoad()
    if "wrk" in options.only:
        agree_with_wrk(options.rounds or (4 if options.quick else 9), 2 if options.quick else 4, findings)
    if "stall" in options.only:
        show_stall(3 if options.quick else 5, findings)
    if "rate" in options.only:
        send_fast(3 if options.quick else 10, findings)
    findings.figures["foreign_cpu"] = foreign.cores()
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        findings = finish("bench_check", lambda: run(options))
    except Failed as failure:
        return failure.code
    figures = {name: round(value, 4) for name, value in findings.figures.items()}
    for name, value in figures.items():
        print(f"{name:32}{value:12,.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    for text in findings.broken:
        print(f"bench_check: does not hold: {text}", file=sys.stderr)
    return 1 if findings.broken else 0


if __name__ == "__main__":
    sys.exit(main())
