"""What well-behaved clients notice of abuse: their p99, alone and beside abusers, in alternating rounds of one run.

Two kinds of abuse. `slowloris`: 500 connections that send a byte of a header now and then, and come back when they are
cut. `flood`: clients that send 20 MB bodies one after another, whatever they are answered, as fast as a line of
100 Mbit/s lets them. Both run in a process of their own at low priority, so that on a small machine it is the
server that is measured and not the abusers' share of its cores. Well-behaved clients ask at a steady pace that the
server can easily keep; a request's time counts from when it was due.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.commandline import Failed, finish, options_parser, say
from benchmarks.contestants import timebound
from benchmarks.load import HOST, EchoTraffic, answers_right, free_port, measure
from benchmarks.processes import Server
from benchmarks.workload import ECHO_SUM
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.report import quantile

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

EXAMPLES = """\
examples:
  python benchmarks/abuse.py --quick
  python benchmarks/abuse.py --json abuse.json
"""


async def _slow_client(port: int) -> None:
    """Opens a connection, says a little of a request again and again, and starts anew when it is cut."""
    opening = b"POST /predictions/echo HTTP/1.1\r\nHost: test\r\nX-Slow: "
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(opening)
            while not writer.is_closing():
                writer.write(b"a")
                with suppress(TimeoutError):
                    async with asyncio.timeout(SLOW_BYTE_S):
                        if not await reader.read(1024):
                            writer.close()
        await asyncio.sleep(0.05)


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


Client = Callable[[int], Coroutine[Any, Any, None]]
ABUSERS: dict[str, tuple[Client, int]] = {
    "slowloris": (_slow_client, SLOW_CONNECTIONS),
    "flood": (_flood_client, FLOOD_CLIENTS),
}


def _abuse(kind: str, port: int) -> None:
    os.nice(10)
    client, count = ABUSERS[kind]

    async def run() -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(count):
                clients.create_task(client(port))

    uvloop.run(run())


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
    """p99 in ms by situation and round; what else was seen."""

    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    p99_ms: dict[str, list[float]] = field(default_factory=dict)
    open_most: float = 0
    turned_away: dict[str, float] = field(default_factory=dict)
    growth_mib: float = 0.0
    errors: int = 0
    foreign_cores: float = 0.0

    def ratio(self, kind: str) -> float:
        """How much longer the slowest hundredth waits beside abusers: the median of the rounds, each with its quiet."""
        pairs = zip(self.p99_ms[kind], self.p99_ms["quiet"], strict=True)
        return median(beside / alone for beside, alone in pairs)


async def _is_answered(reader: asyncio.StreamReader) -> bool:
    """Whether the next answer is the right one."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    except (asyncio.IncompleteReadError, OSError):
        return False
    return b" 200 " in head[:20] and bool(json.loads(body) == {"sum": ECHO_SUM})


async def _well_behaved(traffic: EchoTraffic, seconds: float, findings: Findings) -> list[float]:
    """Sorted seconds from when each request was due to its right answer."""
    taken: list[float] = []
    began = time.perf_counter() + 0.1

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, traffic.port)
        due = began + number * PACE_S / CLIENTS
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(traffic.next().request)
            if await _is_answered(reader):
                taken.append(time.perf_counter() - due)
            else:
                findings.errors += 1
            due += PACE_S
        writer.close()

    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(client(number))
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


def one_round(traffic: EchoTraffic, kind: str, seconds: float, findings: Findings) -> None:
    """Measure alone, or beside abusers who have had time to arrive."""
    if kind == "quiet":
        seconds_each = uvloop.run(_well_behaved(traffic, seconds, findings))
    else:
        with Abuse(kind, traffic.port):
            _wait_for_abusers(traffic.port, ABUSERS[kind][1])
            seconds_each = uvloop.run(_well_behaved(traffic, seconds, findings))
            findings.open_most = max(findings.open_most, metrics(traffic.port)["timebound_connections_open"])
    findings.p50_ms.setdefault(kind, []).append(quantile(seconds_each, 0.5) * 1000)
    findings.p99_ms.setdefault(kind, []).append(quantile(seconds_each, 0.99) * 1000)


def run(options: argparse.Namespace) -> Findings:
    """Rounds of quiet and each abuse in turn, against one server."""
    rounds, seconds = (3, 2.5) if options.quick else (9, 4.0)
    port = free_port()
    traffic = EchoTraffic(port)
    arguments = [*options.serve_args, "--read-timeout", str(READ_TIMEOUT_S), "--profiles", "none"]
    command = [*timebound("echo", arguments), "--port", str(port)]
    findings, foreign = Findings(), ForeignLoad()
    with Server("timebound", command, {}, lambda: answers_right(traffic)) as server:
        measure(traffic, CLIENTS, 1.0)
        before = resident_mib(server.pid)
        kinds = ["quiet", *ABUSERS]
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for kind in kinds if number % 2 else reversed(kinds):
                one_round(traffic, kind, seconds, findings)
                findings.growth_mib = max(findings.growth_mib, resident_mib(server.pid) - before)
        turned = {name: value for name, value in metrics(port).items() if "turned_away_total" in name}
        findings.turned_away = {name.split('"')[1]: value for name, value in turned.items()}
    findings.foreign_cores = foreign.cores()
    return findings


def table(findings: Findings) -> str:
    """The figures as a table for people."""
    rows = [f"{'':12} {'p50, ms':>9} {'p99, ms':>9} {'p99 to quiet':>13}"]
    for kind in ("quiet", *ABUSERS):
        ratio = "" if kind == "quiet" else f"{findings.ratio(kind):.2f}"
        p50, p99 = median(findings.p50_ms[kind]), median(findings.p99_ms[kind])
        rows.append(f"{kind:12} {p50:9.2f} {p99:9.2f} {ratio:>13}")
    turned = ", ".join(f"{code}: {count:.0f}" for code, count in sorted(findings.turned_away.items()))
    rows += [
        f"{CLIENTS} well-behaved clients, {CLIENTS / PACE_S:.0f} requests/s",
        f"most connections open: {findings.open_most:.0f}; turned away: {turned}",
        f"the gateway's memory grew by {findings.growth_mib:.1f} MiB at most",
        f"other programs kept {findings.foreign_cores:.2f} cores busy",
    ]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    try:
        findings = finish("abuse", lambda: run(options))
    except Failed as failure:
        return failure.code
    print(table(findings))
    if options.json:
        figures = {
            "slowloris_p99_ratio": findings.ratio("slowloris"),
            "flood_p99_ratio": findings.ratio("flood"),
            "quiet_p99_ms": median(findings.p99_ms["quiet"]),
            "slowloris_p99_ms": median(findings.p99_ms["slowloris"]),
            "flood_p99_ms": median(findings.p99_ms["flood"]),
            "gateway_growth_mib": findings.growth_mib,
            "errors": findings.errors,
            "foreign_cores": findings.foreign_cores,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if findings.errors:
        print(f"abuse: {findings.errors} answers to well-behaved clients were wrong or missing", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
