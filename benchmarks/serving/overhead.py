"""What a server adds to a model: the bare loop, Timebound and FastAPI + uvicorn, side by side in one run.

Two kinds of work: `ensemble` (base64 PNG -> three networks -> class, about 10 ms per picture and core) and
`echo` (eight numbers -> their sum). Rounds are interleaved and medians shown, so that noise hits all alike.

The exit code is 1 if Timebound does not keep its bars: the echo at concurrency 64 at 3.0 times FastAPI's best turn, at
1 no slower than FastAPI; the ensemble at 50 at 0.97 of the bare loop, alone 0.4 ms over the bare model at the most, in
300 MiB, with its first answer within a second; no answer wrong or missing.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bare import BareLoop, Pace, echo_step, ensemble_step
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT, fastapi, timebound
from benchmarks.tools.load import (
    EchoTraffic,
    EnsembleTraffic,
    Load,
    Traffic,
    answers_right,
    free_port,
    measure,
    measure_echo,
)
from benchmarks.tools.processes import Server
from benchmarks.tools.report import ALONE, BARE, CEILING, QUIET_CORES, Case, Findings, figures, table
from benchmarks.tools.workload import MODELS_ENV, Sample, load_samples

CONTESTANTS = (BARE, "timebound", "fastapi")
WORKLOADS = ("ensemble", "echo")
# Ratios want the rounds of a full run: one or two short turns of each do not settle them.
BARS = (
    *zero("errors"),
    Bar("pss_mib", at_most=300),
    Bar("ensemble_c50_ratio", at_least=0.97, is_quick=False),
    Bar("ensemble_c1_added_ms", at_most=0.4, is_quick=False),
    Bar("echo_over_fastapi", at_least=3.0, is_quick=False),
    Bar("echo_c1_over_fastapi", at_most=1.0, is_quick=False),
    Bar("first_answer_s", at_most=1.0, is_quick=False),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/overhead.py --quick
  python benchmarks/serving/overhead.py --json out.json
  python benchmarks/serving/overhead.py --quick --only bare,fastapi
  python benchmarks/serving/overhead.py --workloads echo --serve-args="--workers 1"
"""


@dataclass(frozen=True)
class Plan:
    """How long each part is measured, in seconds, and how often."""

    fresh_starts: int
    bare_s: float
    ceiling_s: float
    ensemble_rounds: int
    # By concurrency.
    ensemble_s: dict[int, float]
    # The concurrencies of each round, and the time for each one; wrk counts whole seconds only.
    echo_rounds: tuple[tuple[int, ...], ...]
    echo_s: int
    # How many rounds may be added while other programs disturb.
    extra_rounds: int

    def rounds(self, workload: str) -> int:
        """How many times each contestant has its turn."""
        return self.ensemble_rounds if workload == "ensemble" else len(self.echo_rounds)


FULL = Plan(3, 2.0, 3.0, 5, {1: 2.0, 10: 2.0, 50: 4.0}, ((1, 10, 50, 64),) * 3, 2, extra_rounds=5)
QUICK = Plan(1, 0.5, 1.0, 3, {1: 0.6, 10: 0.5, 50: 1.1}, ((1, 10, 50, 64), (1, 64, 64)), 1, extra_rounds=0)
ECHO_BARE_S = 0.3


class Setup:
    """Knows how each contestant is started for each kind of work."""

    def __init__(self, models: Path, samples: Sequence[Sample], serve_args: Sequence[str]) -> None:
        self.models = models
        self._samples = samples
        self._serve_args = list(serve_args)

    def server(self, contestant: str, workload: str) -> tuple[Server, Traffic]:
        """A server, not yet started, and the traffic for it."""
        port = free_port()
        traffic = EchoTraffic(port) if workload == "echo" else EnsembleTraffic(port, self._samples)
        command = timebound(workload, self._serve_args) if contestant == "timebound" else fastapi(workload)
        server = Server(
            contestant,
            [*command, "--port", str(port)],
            {MODELS_ENV: str(self.models)},
            lambda: answers_right(traffic),
        )
        return server, traffic


def weigh(setup: Setup, plan: Plan, servers: Sequence[str], findings: Findings) -> None:
    """Start-to-first-answer, and memory after some load.

    Each server alone: pages that it shares with another one would count half.
    """
    for _ in range(plan.fresh_starts):
        for name in servers:
            say(f"ensemble: starting {name} alone")
            server, traffic = setup.server(name, "ensemble")
            with server:
                measure(traffic, 50, 0.5)
                findings.pss_mib.setdefault(name, []).append(server.pss_mib())
                findings.process_counts[name] = server.process_count()
            findings.first_answers_s.setdefault(name, []).append(server.first_answer_s)


def compare(setup: Setup, plan: Plan, workload: str, contestants: Sequence[str], findings: Findings) -> None:
    """Measure all contestants in turn, in every second round backwards."""
    rounds = plan.rounds(workload)
    with ExitStack() as running:
        loop: BareLoop | None = None
        if BARE in contestants:
            step = partial(ensemble_step, setup.models) if workload == "ensemble" else echo_step
            loop = running.enter_context(BareLoop(step))
        traffics: dict[str, Traffic] = {}
        for name in contestants:
            if name != BARE:
                say(f"{workload}: starting {name}")
                server, traffics[name] = setup.server(name, workload)
                running.enter_context(server)
                if workload == "ensemble":
                    findings.first_answers_s.setdefault(name, []).append(server.first_answer_s)
        for number in range(rounds + plan.extra_rounds):
            if number >= rounds and findings.foreign_cores(workload) <= QUIET_CORES:
                break
            for name in contestants if number % 2 == 0 else reversed(contestants):
                say(f"{workload}: round {number + 1} of {max(rounds, number + 1)}, {name}")
                if name in traffics:
                    measure_server(plan, number, name, traffics[name], findings)
                elif loop is not None:
                    measure_bare(plan, workload, loop, findings)


def measure_bare(plan: Plan, workload: str, loop: BareLoop, findings: Findings) -> None:
    """One round of the bare loop, both ways."""
    alone_s, ceiling_s = (plan.bare_s, plan.ceiling_s) if workload == "ensemble" else (ECHO_BARE_S, ECHO_BARE_S)
    findings.take(Case(workload, BARE, ALONE), lambda: as_load(loop.alone(alone_s)))
    findings.take(Case(workload, BARE, CEILING), lambda: as_load(loop.ceiling(ceiling_s)))


def measure_server(plan: Plan, number: int, name: str, traffic: Traffic, findings: Findings) -> None:
    """One round of one server, at each concurrency."""
    if isinstance(traffic, EchoTraffic):
        for concurrency in plan.echo_rounds[number % len(plan.echo_rounds)]:
            findings.take(Case("echo", name, concurrency), partial(measure_echo, traffic, concurrency, plan.echo_s))
    else:
        for concurrency, seconds in plan.ensemble_s.items():
            findings.take(Case("ensemble", name, concurrency), partial(measure, traffic, concurrency, seconds))


def as_load(pace: Pace) -> Load:
    """The bare loop's pace in the columns of a server."""
    return Load(pace.rate, pace.p50_ms, pace.p99_ms, errors=0, client_cpu=0.0)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    add_choice(parser, "--only", CONTESTANTS, "contestants")
    add_choice(parser, "--workloads", WORKLOADS, "kinds of work")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Findings:
    """Build what is missing, then measure."""
    # In a process of its own: libraries mapped here would make the servers' share of them look smaller.
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/tools/models.py"), str(options.models)], check=True, stdout=2
    )
    setup = Setup(options.models, load_samples(options.models), options.serve_args)
    plan = QUICK if options.quick else FULL
    findings = Findings()
    if "ensemble" in options.workloads:
        weigh(setup, plan, [name for name in options.only if name != BARE], findings)
    for workload in options.workloads:
        compare(setup, plan, workload, options.only, findings)
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        findings = finish("overhead", lambda: run(options))
    except Failed as failure:
        return failure.code
    print(table(findings))
    return conclude("overhead", options, figures(findings), BARS)


if __name__ == "__main__":
    sys.exit(main())
