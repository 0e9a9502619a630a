"""What well-behaved clients notice of abuse, and what abuse costs the gateway over what its limits say.

Each kind of abuse has a server of its own, and runs in a process of its own at the lowest priority, so that on a small
machine it is the server that is measured and not the abusers' share of its cores: elsewhere they would have machines
of their own. The kinds, in `benchmarks/tools/abusers.py`: 500 connections that send a byte of a header now and then; a
flood of 20 MB bodies; endless trailers; bodies in two-byte chunks; JSON of very many fields with a key; forms with a
file of 20 MB, one after the other, at a server that takes them; forms of very many parts; endless and tiny header
lines; pipelined requests, a thousand at once; small bodies that wait behind an answer which is not read; very many
connections.

Well-behaved clients ask at a steady pace that the server can easily keep. A request's time is from the giving of its
bytes to the system until the kernel has the answer, by the kernel's own stamp. Each round beside abusers is compared
with a round alone shortly before or after it; a ratio is the median of these pairs. Between the two is a control: the
same abusers do the same to a second server on this machine, while the clients ask the first one as ever. What that
round takes longer is the machine's doing, whose cores are shared where the server is not. It is printed under
"elsewhere" (`KIND_control_p99_ratio`); no bar allows for it. For each kind, the gateway's real growth is set against
what its limits counted (bodies and unread answers held, 0.3 MB a connection), and against the number of connections
where there are many; and the longest turn of its event loop is noted.

The exit code is 1 if a ratio of p99 is above 1.20, if the event loop worked for more than 20 ms without a pause, if the
gateway grew by more than twice what it counted, or by more than one large body under slow or flooding clients, if a
connection took more than it may, or if an answer to a well-behaved client is wrong or missing.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.abusers import ABUSERS, FLOOD_BODY, Abuse
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import EchoTraffic, answers_right, free_port, measure
from benchmarks.tools.processes import Server
from benchmarks.tools.pulse import MANY, Weight, longest_stall_s, metrics
from benchmarks.tools.stamped import Stamped
from benchmarks.tools.workload import ECHO_SUM
from timebound.lab.load.client import Reply
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.simulate import quantile

CLIENTS = 8
"""Well-behaved ones."""
PACE_S = 0.02
"""Between two requests of one of them."""
READ_TIMEOUT_S = 2
ARRIVE_S = 20.0
GOAL = 1.20
"""The p99 beside abusers over the p99 alone."""
CONNECTION_KB = {"slowloris": 20.0, "backlog": 120.0, "connections": 20.0}
"""What one connection may really take of memory, by kind, without what is counted as held."""
BARS = (
    *zero("errors"),
    Bar("gateway_growth_mib", at_most=FLOOD_BODY / 2**20),
    Bar("worst_stall_ms", at_most=20),
    Bar("memory_over_counted", at_most=2),
    *(Bar(f"{kind}_connection_kb", at_most=most) for kind, most in CONNECTION_KB.items()),
    # A few pairs of two seconds: each p99 is the eighth slowest of 800, and their ratios scatter.
    *(Bar(f"{kind}_p99_ratio", at_most=GOAL, is_quick=False) for kind in ABUSERS),
)
MORE = {"uploads": ("--max-body", "24000000", "--read-timeout", "10")}
"""What the server of a kind is told besides."""
PULSE = Path(__file__).resolve().parents[1] / "tools/pulse.py"

EXAMPLES = """\
examples:
  python benchmarks/serving/abuse.py --quick
  python benchmarks/serving/abuse.py --json abuse.json
  python benchmarks/serving/abuse.py --quick --kinds trailers,chunks
"""


@dataclass
class Findings:
    """What was seen, by situation and round."""

    p50_ms: dict[str, list[float]] = field(default_factory=dict)
    p99_ms: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    control_ratios: dict[str, list[float]] = field(default_factory=dict)
    """The same while the abusers are busy with another server on this machine."""
    busy: dict[str, list[float]] = field(default_factory=dict)
    """The gateway's share of a core."""
    stall_ms: dict[str, float] = field(default_factory=dict)
    """The longest turn of the event loop, in processor time."""
    held_ms: dict[str, float] = field(default_factory=dict)
    """The same by the clock, without what the loop waited for a core."""
    connection_kb: dict[str, float] = field(default_factory=dict)
    """What each of many connections really took."""
    growth_mib: dict[str, float] = field(default_factory=dict)
    over_counted: dict[str, float] = field(default_factory=dict)
    open_most: float = 0
    turned_away: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    foreign_cores: float = 0.0

    def ratio(self, kind: str) -> float:
        """How much longer the slowest hundredth waits beside abusers: the median of the pairs."""
        return median(self.ratios[kind])

    def control_ratio(self, kind: str) -> float:
        """How much of that is the machine's doing: the same, with the abusers at another server."""
        return median(self.control_ratios[kind])


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


def _wait_for_abusers(port: int, count: int) -> None:
    """Until nearly all have come, be they gone again; what starting their process costs is no fault of the server."""
    end, before = time.monotonic() + ARRIVE_S, _turned_away(metrics(port))
    while (now := metrics(port))["timebound_connections_open"] + _turned_away(now) - before < 0.95 * count:
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def _turned_away(figures: Mapping[str, float]) -> float:
    return sum(value for name, value in figures.items() if "turned_away_total" in name)


@dataclass(frozen=True)
class _Stage:
    """The server that is asked, and another one on the same machine for the same abusers."""

    server: Server
    traffic: EchoTraffic
    kind: str
    elsewhere: int
    """The port of the other one."""
    seconds: float
    findings: Findings

    def round(self, *, is_backward: bool) -> None:
        """Measure alone, with the abusers elsewhere, and beside them; or the other way about."""
        order = [("quiet", 0), ("control", self.elsewhere), (self.kind, self.traffic.port)]
        p99_ms = {which: self._measure(which, abused) for which, abused in (reversed(order) if is_backward else order)}
        for ratios, which in ((self.findings.ratios, self.kind), (self.findings.control_ratios, "control")):
            ratios.setdefault(self.kind, []).append(p99_ms[which] / p99_ms["quiet"])

    def _measure(self, which: str, abused: int) -> float:
        """The p99 in ms, beside abusers of this port who have had time to arrive."""
        if not abused:
            return self._measure_now(which)
        with Abuse(self.kind, abused):
            _wait_for_abusers(abused, ABUSERS[self.kind][1])
            p99_ms = self._measure_now(which)
            self.findings.open_most = max(self.findings.open_most, metrics(abused)["timebound_connections_open"])
        return p99_ms

    def _measure_now(self, which: str) -> float:
        findings = self.findings
        began, before = time.monotonic(), _cpu_s(self.server.pid)
        taken = uvloop.run(_well_behaved(self.traffic, self.seconds, findings))
        findings.busy.setdefault(which, []).append((_cpu_s(self.server.pid) - before) / (time.monotonic() - began))
        p99_ms = quantile(taken, 0.99) * 1000
        findings.p50_ms.setdefault(which, []).append(quantile(taken, 0.5) * 1000)
        findings.p99_ms.setdefault(which, []).append(p99_ms)
        return p99_ms


def _cpu_s(pid: int) -> float:
    """What the main thread of a process has used so far, by the kernel's account."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) * 1e-9


def run(options: argparse.Namespace) -> Findings:
    """Each kind of abuse against a server of its own: pairs of rounds, alone and beside it."""
    findings, foreign = Findings(), ForeignLoad()
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            say(kind)
            _one_kind(kind, options, Path(folder) / kind, findings)
    findings.foreign_cores = foreign.cores()
    return findings


def _one_kind(kind: str, options: argparse.Namespace, notes: Path, findings: Findings) -> None:
    rounds, seconds = (1, 2.0) if options.quick else (8, 2.5)
    port, elsewhere = free_port(), free_port()
    traffic = EchoTraffic(port)
    arguments = ["--read-timeout", str(READ_TIMEOUT_S), "--profiles", "none", *MORE.get(kind, ()), *options.serve_args]
    command = timebound("echo", arguments)
    first = [sys.executable, str(PULSE), str(notes), *command[1:], "--port", str(port)]
    second = [*command, "--port", str(elsewhere)]
    with (
        Server("timebound", first, {}, lambda: answers_right(traffic)) as server,
        Server("timebound", second, {}, lambda: answers_right(EchoTraffic(elsewhere))),
    ):
        measure(traffic, CLIENTS, 0.5)
        began, weight = time.monotonic(), Weight(server.pid, port)
        with weight:
            stage = _Stage(server, traffic, kind, elsewhere, seconds, findings)
            for number in range(rounds):
                stage.round(is_backward=number % 2 == 0)
        used_s, held_s = longest_stall_s(notes, began, time.monotonic())
        findings.stall_ms[kind], findings.held_ms[kind] = used_s * 1000, held_s * 1000
        if ABUSERS[kind][1] >= MANY:
            findings.connection_kb[kind] = weight.connection_bytes / 1000
        findings.growth_mib[kind], findings.over_counted[kind] = weight.growth / 2**20, weight.over_counted
        for name, value in metrics(port).items():
            if "turned_away_total" in name:
                code = name.split('"')[1]
                findings.turned_away[code] = findings.turned_away.get(code, 0) + value


def table(findings: Findings) -> str:
    """The figures as a table for people."""
    rows = [
        f"{'':12} {'p50, ms':>9} {'p99, ms':>9} {'p99 to quiet':>13} {'elsewhere':>9} {'gateway busy':>13} "
        f"{'stall, ms':>10} {'by the clock':>13} {'grown, MiB':>11} {'over counted':>13} {'kB each':>8}"
    ]
    for kind in ("quiet", *findings.ratios):
        p50, p99, busy = (median(seen[kind]) for seen in (findings.p50_ms, findings.p99_ms, findings.busy))
        if kind == "quiet":
            rows.append(f"{kind:12} {p50:9.2f} {p99:9.2f} {'':>13} {'':>9} {busy:13.3f}")
            continue
        cost = f"{findings.stall_ms[kind]:10.1f} {findings.held_ms[kind]:13.1f} {findings.growth_mib[kind]:11.1f} "
        cost += f"{findings.over_counted[kind]:13.2f} {findings.connection_kb.get(kind, 0):8.0f}"
        ratios = f"{findings.ratio(kind):13.2f} {findings.control_ratio(kind):9.2f}"
        rows.append(f"{kind:12} {p50:9.2f} {p99:9.2f} {ratios} {busy:13.3f} {cost}")
    turned = ", ".join(f"{code}: {count:.0f}" for code, count in sorted(findings.turned_away.items()))
    rows += [
        f"{CLIENTS} well-behaved clients, {CLIENTS / PACE_S:.0f} requests/s",
        f"most connections open: {findings.open_most:.0f}; turned away: {turned}",
        f"other programs kept {findings.foreign_cores:.2f} cores busy",
    ]
    return "\n".join(rows)


def figures(findings: Findings) -> dict[str, float]:
    """The flat object for --json."""
    kinds = list(findings.ratios)
    heavy = [findings.growth_mib[kind] for kind in ("slowloris", "flood") if kind in kinds]
    return {
        **{f"{kind}_p99_ratio": findings.ratio(kind) for kind in kinds},
        **{f"{kind}_control_p99_ratio": findings.control_ratio(kind) for kind in kinds},
        **{f"{kind}_p99_ms": median(findings.p99_ms[kind]) for kind in ("quiet", *kinds)},
        **{f"{kind}_gateway_busy": median(findings.busy[kind]) for kind in ("quiet", *kinds)},
        **{f"{kind}_stall_ms": findings.stall_ms[kind] for kind in kinds},
        **{f"{kind}_over_counted": findings.over_counted[kind] for kind in kinds},
        **{f"{kind}_connection_kb": took for kind, took in findings.connection_kb.items()},
        "worst_stall_ms": max(findings.stall_ms.values()),
        "worst_stall_by_the_clock_ms": max(findings.held_ms.values()),
        "memory_over_counted": max(findings.over_counted.values()),
        **({"gateway_growth_mib": max(heavy)} if heavy else {}),
        "errors": findings.errors,
        "foreign_cores": findings.foreign_cores,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--kinds", list(ABUSERS), "kinds of abuse")
    options = parser.parse_args(arguments)
    try:
        findings = finish("abuse", lambda: run(options))
    except Failed as failure:
        return failure.code
    print(table(findings))
    return conclude("abuse", options, figures(findings), BARS)


if __name__ == "__main__":
    sys.exit(main())
