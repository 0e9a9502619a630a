"""What well-behaved clients notice of abuse: their p99, alone and beside abusers, in alternating rounds of one run.

Two kinds of abuse. `slowloris`: 500 connections that send a byte of a header now and then, and come back when they are
cut. `flood`: clients that send 20 MB bodies one after another, whatever they are answered, as fast as a line of
100 Mbit/s lets them. Both run in a process of their own at the lowest priority, so that on a small machine it is the
server that is measured and not the abusers' share of its cores: elsewhere they would have machines of their own.

Well-behaved clients ask at a steady pace that the server can easily keep. A request's time is from the giving of its
bytes to the system until the kernel has the answer, by the kernel's own stamp. Each round beside abusers is compared
with a round alone right before or after it; a ratio is the median of these pairs.

The exit code is 1 if a ratio of p99 is above 1.20, if the gateway's memory grows by more than one of the large bodies,
or if an answer to a well-behaved client is wrong or missing.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import HOST, EchoTraffic, answers_right, free_port, measure
from benchmarks.tools.processes import Server
from benchmarks.tools.stamped import Stamped
from benchmarks.tools.workload import ECHO_SUM
from timebound.lab.load.client import Reply
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.simulate import quantile

SLOW_CONNECTIONS = 500
FLOOD_CLIENTS = 4
FLOOD_BODY = 20_000_000
LINE_BYTES_S = 100_000_000 / 8
CLIENTS = 8
"""Well-behaved ones."""
PACE_S = 0.02
"""Between two requests of one of them."""
READ_TIMEOUT_S = 2
SLOW_BYTE_S = 0.5
ARRIVE_S = 20.0
GOAL = 1.20
"""The p99 beside abusers over the p99 alone."""
BARS = (
    *zero("errors"),
    Bar("gateway_growth_mib", at_most=FLOOD_BODY / 2**20),
    # Three pairs of two seconds: each p99 is the eighth slowest of 800, and their ratios scatter.
    Bar("slowloris_p99_ratio", at_most=GOAL, is_quick=False),
    Bar("flood_p99_ratio", at_most=GOAL, is_quick=False),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/abuse.py --quick
  python benchmarks/serving/abuse.py --json abuse.json
"""


def _slow_clients(port: int) -> None:
    """Connections that say a little of a request again and again, and start anew when they are cut.

    By hand and in turn: this must cost less than what it does to the server.
    """
    opening = b"POST /predictions/echo HTTP/1.1\r\nHost: test\r\nX-Slow: "
    lines: list[socket.socket | None] = [None] * SLOW_CONNECTIONS
    pause_s = SLOW_BYTE_S / SLOW_CONNECTIONS
    due = time.perf_counter()
    while True:
        for place, line in enumerate(lines):
            due += pause_s
            time.sleep(max(0.0, due - time.perf_counter()))
            lines[place] = _say_a_little(line, port, opening)


def _say_a_little(line: socket.socket | None, port: int, opening: bytes) -> socket.socket | None:
    """The connection to go on with: this one, or a new one at once if it was cut."""
    try:
        if line is not None:
            with suppress(BlockingIOError):
                line.recv(4096)
                raise ConnectionError  # it was told why, or is cut
            line.send(b"a")
            return line
    except OSError:
        assert line is not None
        line.close()
    with suppress(OSError):
        line = socket.create_connection((HOST, port))
        line.setblocking(False)
        line.send(opening)
        return line
    return None


async def _flood_client(port: int) -> None:
    """Sends large bodies, one after another, at its share of the line."""
    piece = bytes(125_000)
    pause_s = len(piece) * FLOOD_CLIENTS / LINE_BYTES_S
    head = b"POST /predictions/echo HTTP/1.1\r\nHost: test\r\n%b\r\n\r\n"
    lengths = (b"Content-Length: %d" % FLOOD_BODY, b"Transfer-Encoding: chunked")
    for turn in range(10**9):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            is_chunked = bool(turn % 2)
            writer.write(head % lengths[turn % 2])
            for _ in range(FLOOD_BODY // len(piece)):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            writer.close()


def _flood_clients(port: int) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(FLOOD_CLIENTS):
                clients.create_task(_flood_client(port))

    uvloop.run(run())


ABUSERS: dict[str, tuple[Callable[[int], None], int]] = {
    "slowloris": (_slow_clients, SLOW_CONNECTIONS),
    "flood": (_flood_clients, FLOOD_CLIENTS),
}


def _abuse(kind: str, port: int) -> None:
    os.nice(19)
    ABUSERS[kind][0](port)


class Abuse:
    """Abusers in a process of their own, for the length of a `with` block."""

    def __init__(self, kind: str, port: int) -> None:
        self._process = multiprocessing.get_context("spawn").Process(target=_abuse, args=(kind, port), daemon=True)

    def __enter__(self) -> "Abuse":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


@dataclass
class Findings:
    """What was seen, by situation and round."""

    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    p99_ms: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    busy: dict[str, list[float]] = field(default_factory=dict)
    """The gateway's share of a core."""
    open_most: float = 0
    turned_away: dict[str, float] = field(default_factory=dict)
    growth_mib: float = 0.0
    errors: int = 0
    foreign_cores: float = 0.0

    def ratio(self, kind: str) -> float:
        """How much longer the slowest hundredth waits beside abusers: the median of the pairs."""
        return median(self.ratios[kind])


class _Asked:
    """One request of a well-behaved client."""

    def __init__(self, taken: list[float], findings: Findings) -> None:
        self._taken = taken
        self._findings = findings
        self._sent = 0.0

    def sent(self, at: float) -> None:
        self._sent = at

    def answered(self, reply: Reply, received: float, noticed: float) -> None:
        if reply.status == 200 and json.loads(reply.body) == {"sum": ECHO_SUM}:
            self._taken.append(received - self._sent)
        else:
            self._findings.errors += 1

    def lost(self, why: str) -> None:
        self._findings.errors += 1


async def _well_behaved(traffic: EchoTraffic, seconds: float, findings: Findings) -> list[float]:
    """Sorted seconds from the sending of each request to its right answer."""
    taken: list[float] = []
    client = Stamped(traffic.port, time.monotonic, lambda reply: None)
    count = int(seconds * CLIENTS / PACE_S)
    due = time.monotonic() + 0.1
    for _ in range(count):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        client.send(traffic.next().request, _Asked(taken, findings))
        due += PACE_S / CLIENTS
    end = time.monotonic() + 10.0
    before = findings.errors
    while len(taken) + findings.errors - before < count and time.monotonic() < end:
        await asyncio.sleep(0.01)
    client.close()
    findings.errors += max(0, count - len(taken) - (findings.errors - before))
    return sorted(taken)


def metrics(port: int) -> dict[str, float]:
    """The server's own numbers."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def resident_mib(pid: int) -> float:
    """Memory of one process: here the gateway, which is what clients could fill."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _wait_for_abusers(port: int, count: int) -> None:
    """Until nearly all have come; what starting their process costs is no fault of the server."""
    end = time.monotonic() + ARRIVE_S
    while metrics(port)["timebound_connections_open"] < 0.95 * count:
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def one_round(server: Server, traffic: EchoTraffic, kind: str, seconds: float, findings: Findings) -> float:
    """Measure alone, or beside abusers who have had time to arrive; the p99 in ms."""
    if kind == "quiet":
        return _measured(server, traffic, kind, seconds, findings)
    with Abuse(kind, traffic.port):
        _wait_for_abusers(traffic.port, ABUSERS[kind][1])
        p99_ms = _measured(server, traffic, kind, seconds, findings)
        findings.open_most = max(findings.open_most, metrics(traffic.port)["timebound_connections_open"])
    return p99_ms


def _measured(server: Server, traffic: EchoTraffic, kind: str, seconds: float, findings: Findings) -> float:
    began, before = time.monotonic(), _cpu_s(server.pid)
    taken = uvloop.run(_well_behaved(traffic, seconds, findings))
    findings.busy.setdefault(kind, []).append((_cpu_s(server.pid) - before) / (time.monotonic() - began))
    p99_ms = quantile(taken, 0.99) * 1000
    findings.p50_ms.setdefault(kind, []).append(quantile(taken, 0.5) * 1000)
    findings.p99_ms.setdefault(kind, []).append(p99_ms)
    return p99_ms


def _cpu_s(pid: int) -> float:
    """What the main thread of a process has used so far, by the kernel's account."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) * 1e-9


def run(options: argparse.Namespace) -> Findings:
    """Pairs of rounds, alone and beside each abuse in turn, against one server."""
    rounds, seconds = (3, 2.0) if options.quick else (12, 3.0)
    port = free_port()
    traffic = EchoTraffic(port)
    arguments = [*options.serve_args, "--read-timeout", str(READ_TIMEOUT_S), "--profiles", "none"]
    command = [*timebound("echo", arguments), "--port", str(port)]
    findings, foreign = Findings(), ForeignLoad()
    with Server("timebound", command, {}, lambda: answers_right(traffic)) as server:
        measure(traffic, CLIENTS, 1.0)
        before = resident_mib(server.pid)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for kind in ABUSERS:
                pair = ("quiet", kind) if number % 2 else (kind, "quiet")
                p99_ms = {which: one_round(server, traffic, which, seconds, findings) for which in pair}
                findings.ratios.setdefault(kind, []).append(p99_ms[kind] / p99_ms["quiet"])
                findings.growth_mib = max(findings.growth_mib, resident_mib(server.pid) - before)
        turned = {name: value for name, value in metrics(port).items() if "turned_away_total" in name}
        findings.turned_away = {name.split('"')[1]: value for name, value in turned.items()}
    findings.foreign_cores = foreign.cores()
    return findings


def table(findings: Findings) -> str:
    """The figures as a table for people."""
    rows = [f"{'':12} {'p50, ms':>9} {'p99, ms':>9} {'p99 to quiet':>13} {'gateway busy':>13}"]
    for kind in ("quiet", *ABUSERS):
        ratio = "" if kind == "quiet" else f"{findings.ratio(kind):.2f}"
        p50, p99 = median(findings.p50_ms[kind]), median(findings.p99_ms[kind])
        rows.append(f"{kind:12} {p50:9.2f} {p99:9.2f} {ratio:>13} {median(findings.busy[kind]):13.3f}")
    turned = ", ".join(f"{code}: {count:.0f}" for code, count in sorted(findings.turned_away.items()))
    rows += [
        f"{CLIENTS} well-behaved clients, {CLIENTS / PACE_S:.0f} requests/s",
        f"most connections open: {findings.open_most:.0f}; turned away: {turned}",
        f"the gateway's memory grew by {findings.growth_mib:.1f} MiB at most",
        f"other programs kept {findings.foreign_cores:.2f} cores busy",
    ]
    return "\n".join(rows)


def figures(findings: Findings) -> dict[str, float]:
    """The flat object for --json."""
    return {
        "slowloris_p99_ratio": findings.ratio("slowloris"),
        "flood_p99_ratio": findings.ratio("flood"),
        "quiet_p99_ms": median(findings.p99_ms["quiet"]),
        "slowloris_p99_ms": median(findings.p99_ms["slowloris"]),
        "flood_p99_ms": median(findings.p99_ms["flood"]),
        "slowloris_gateway_busy": median(findings.busy["slowloris"]),
        "flood_gateway_busy": median(findings.busy["flood"]),
        "quiet_gateway_busy": median(findings.busy["quiet"]),
        "gateway_growth_mib": findings.growth_mib,
        "errors": findings.errors,
        "foreign_cores": findings.foreign_cores,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    try:
        findings = finish("abuse", lambda: run(options))
    except Failed as failure:
        return failure.code
    print(table(findings))
    return conclude("abuse", options, figures(findings), BARS)


if __name__ == "__main__":
    sys.exit(main())
