"""What an overhead run saw, as a table for a person and as flat figures for a program."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.tools.load import Load
from timebound.lab.load.processes import ForeignLoad

BARE = "bare"
# The bare loop's two ways to run; a server is held against the first at concurrency 1, else the second.
ALONE, CEILING = 1, 0
# Cores used by other programs, above which a measurement counts as disturbed.
QUIET_CORES = 0.15


@dataclass(frozen=True)
class Case:
    """One cell of the comparison: who did which work at which concurrency."""

    workload: str
    contestant: str
    concurrency: int


@dataclass(frozen=True)
class Turn:
    """One measurement, and how many cores other programs used meanwhile."""

    load: Load
    foreign_cores: float


@dataclass
class Findings:
    """All measurements of one run.

    Each figure given out is the median over the quieter half of its turns: on a busy machine the other half tells
    more about the neighbours. Turns are chosen by that disturbance alone, never by their result.
    """

    turns: dict[Case, list[Turn]] = field(default_factory=dict)
    first_answers_s: dict[str, list[float]] = field(default_factory=dict)
    pss_mib: dict[str, list[float]] = field(default_factory=dict)
    process_counts: dict[str, int] = field(default_factory=dict)

    def take(self, case: Case, measurement: Callable[[], Load]) -> None:
        """Measure once more and keep what came of it."""
        foreign = ForeignLoad()
        load = measurement()
        self.turns.setdefault(case, []).append(Turn(load, foreign.cores()))

    def quieter_half(self, case: Case) -> list[Turn]:
        """The turns that count, quietest first."""
        turns = sorted(self.turns.get(case, []), key=lambda turn: turn.foreign_cores)
        return turns[: (len(turns) + 1) // 2]

    def typical(self, case: Case) -> Load | None:
        """The median of each figure over the turns that count, and the sum of all errors."""
        loads = [turn.load for turn in self.quieter_half(case)]
        if not loads:
            return None
        return Load(
            rps=median(load.rps for load in loads),
            p50_ms=median(load.p50_ms for load in loads),
            p99_ms=median(load.p99_ms for load in loads),
            errors=sum(turn.load.errors for turn in self.turns[case]),
            client_cpu=median(load.client_cpu for load in loads),
        )

    def best_rps(self, case: Case) -> float | None:
        """The fastest of all turns."""
        return max((turn.load.rps for turn in self.turns.get(case, [])), default=None)

    def echo_over_fastapi(self) -> float | None:
        """Timebound's typical echo rate over FastAPI's best.

        Its best, because two uvicorn processes share one listening socket, and in some turns one of them happens to
        accept all connections and works alone; a ratio to such a turn would flatter us twofold.
        """
        mine, peer = self.typical(Case("echo", "timebound", 64)), self.best_rps(Case("echo", "fastapi", 64))
        return mine.rps / peer if mine and peer else None

    def foreign_cores(self, workload: str | None = None) -> float:
        """The worst disturbance of any turn that counts."""
        cases = [case for case in self.turns if workload in (None, case.workload)]
        return max((turn.foreign_cores for case in cases for turn in self.quieter_half(case)), default=0.0)

    def errors(self) -> int:
        """Wrong and missing answers of the whole run."""
        return sum(turn.load.errors for turns in self.turns.values() for turn in turns)

    def ratio(self, case: Case) -> float | None:
        """Requests/s over those of the bare loop: batch 1 on one core for a lone client, else its ceiling."""
        mode = case.concurrency if case.contestant == BARE else min(case.concurrency, 2) % 2
        bare = self.typical(Case(case.workload, BARE, mode))
        mine = self.typical(case)
        return mine.rps / bare.rps if mine and bare else None


def table(findings: Findings) -> str:
    """Everything measured, one line per case."""
    lines = [f"{'':24}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'of bare':>9}{'errors':>8}{'client cpu':>12}"]
    previous = ""
    for case in findings.turns:
        load, ratio = findings.typical(case), findings.ratio(case)
        assert load is not None
        if case.workload != previous:
            lines.append(case.workload)
            previous = case.workload
        share = f"{ratio:9.3f}" if ratio is not None else f"{'-':>9}"
        lines.append(
            f"  {_label(case):22}{load.rps:11.1f}{load.p50_ms:9.2f}{load.p99_ms:9.2f}{share}"
            f"{load.errors:8d}{load.client_cpu:12.2f}"
        )
    for name, pss in findings.pss_mib.items():
        first = median(findings.first_answers_s[name])
        lines.append(
            f"{name}: {median(pss):.0f} MiB PSS in {findings.process_counts[name]} processes (ensemble), "
            f"first answer after {first:.2f} s"
        )
    over = findings.echo_over_fastapi()
    if over is not None:
        lines.append(f"echo c=64: timebound's median is {over:.2f} times fastapi's best turn")
    foreign = findings.foreign_cores()
    verdict = (
        "quiet enough" if foreign <= QUIET_CORES else "too much to trust these figures; run again when it is quiet"
    )
    lines.append(f"other programs used up to {foreign:.2f} cores in the turns that count: {verdict}")
    return "\n".join(lines)


def _label(case: Case) -> str:
    if case.contestant != BARE:
        return f"{case.contestant} c={case.concurrency}"
    return "bare, one core, batch 1" if case.concurrency == ALONE else "bare, all cores, best"


def figures(findings: Findings) -> dict[str, float]:
    """The flat object for --json: Timebound's figures by plain name, the peer's with its name in front."""
    flat: dict[str, float] = {}
    for case in findings.turns:
        load = findings.typical(case)
        assert load is not None
        prefix = f"{case.contestant}_{case.workload}_{_mode(case)}"
        flat |= {f"{prefix}_rps": load.rps, f"{prefix}_p50_ms": load.p50_ms, f"{prefix}_p99_ms": load.p99_ms}
    for name in ("timebound", "fastapi"):
        flat |= _headline(findings, name, "" if name == "timebound" else f"{name}_")
    over, best = findings.echo_over_fastapi(), findings.best_rps(Case("echo", "fastapi", 64))
    if over is not None:
        flat["echo_over_fastapi"] = over
    if best is not None:
        flat["fastapi_echo_best_rps"] = best
        flat["echo_c1_fastapi_p50_ms"] = flat["fastapi_echo_c1_p50_ms"]
    if over is not None:
        flat["echo_c1_over_fastapi"] = flat["echo_c1_p50_ms"] / flat["fastapi_echo_c1_p50_ms"]
    flat["client_cpu"] = max((turn.load.client_cpu for turns in findings.turns.values() for turn in turns), default=0.0)
    flat["foreign_cpu"] = findings.foreign_cores()
    flat["errors"] = findings.errors()
    return {name: round(value, 4) for name, value in flat.items()}


def _mode(case: Case) -> str:
    if case.contestant != BARE:
        return f"c{case.concurrency}"
    return "alone" if case.concurrency == ALONE else "ceiling"


def _headline(findings: Findings, name: str, prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    ratio = findings.ratio(Case("ensemble", name, 50))
    if ratio is not None:
        flat[f"{prefix}ensemble_c50_ratio"] = ratio
    lone, bare = (findings.typical(Case("ensemble", who, 1)) for who in (name, BARE))
    if lone and bare:
        flat[f"{prefix}ensemble_c1_added_ms"] = lone.p50_ms - bare.p50_ms
    if echo := findings.typical(Case("echo", name, 64)):
        flat[f"{prefix}echo_rps"] = echo.rps
    if echo := findings.typical(Case("echo", name, 1)):
        flat[f"{prefix}echo_c1_p50_ms"] = echo.p50_ms
    if name in findings.pss_mib:
        flat[f"{prefix}pss_mib"] = median(findings.pss_mib[name])
        flat[f"{prefix}first_answer_s"] = median(findings.first_answers_s[name])
    return flat
