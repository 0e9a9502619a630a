"""What a goodput run saw, as a table for a person and as flat figures for a program."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import mean, median

from benchmarks.tools.load import Load
from benchmarks.tools.openloop import DEADLINE_S, Record
from benchmarks.tools.report import QUIET_CORES
from timebound.lab.load.attempts import Attempt, End, Question
from timebound.lab.simulate import quantile

# Width of the bins that are drawn, and of those in which recovery is looked at: it takes about one deadline.
BIN_S = 0.1
FINE_S = 0.01
# Recovered is who gives nothing but full answers for so long.
CLEAN_S = 1.0
BY_MODEL = ("full", "partial")


@dataclass(frozen=True)
class Level:
    """One stretch of open-loop load on one server; shares are of the unique requests."""

    # Of the capacity, and requests per second.
    load: float
    offered: float
    questions: int
    # In time: within the deadline of the first attempt.
    in_time_by_model: float
    full_rps: float
    fallback_in_time: float
    others_in_time: float
    # Within the deadline of any attempt, as in measurements of other servers.
    goodput: float
    mean_members: float
    p50_ms: float
    p99_ms: float
    late: int
    unanswered: int
    wrong: int
    statuses: dict[int, int]
    resends: int
    asked_to_wait: int
    client_cpu: float
    client_lag_p99_ms: float
    client_lag_max_ms: float
    connections: int
    foreign_cores: float


def summarise(record: Record, load: float, foreign_cores: float) -> Level:
    """The figures of one stretch."""
    questions = record.questions
    attempts = [attempt for question in questions for attempt in question.attempts]
    by_model = [question for question in questions if _quality(question) in BY_MODEL]
    in_time = [question for question in by_model if question.latency <= DEADLINE_S]
    full = sum(_quality(question) == "full" for question in in_time)
    fallbacks = sum(_quality(question) == "fallback" and question.latency <= DEADLINE_S for question in questions)
    latencies = sorted(question.latency for question in by_model)
    lags = sorted(attempt.sent - attempt.intended for attempt in attempts if attempt.sent)
    count = len(questions) or 1
    return Level(
        load=load,
        offered=len(questions) / record.seconds,
        questions=len(questions),
        in_time_by_model=len(in_time) / count,
        full_rps=full / record.seconds,
        fallback_in_time=fallbacks / count,
        others_in_time=fallbacks / (len(questions) - full) if len(questions) > full else 1.0,
        goodput=len(by_model) / count,
        mean_members=mean(question.attempts[-1].members for question in in_time) if in_time else 0.0,
        p50_ms=quantile(latencies, 0.5) * 1000,
        p99_ms=quantile(latencies, 0.99) * 1000,
        late=sum(attempt.end is End.TIMED_OUT for attempt in attempts),
        unanswered=sum(question.last.end is not End.ANSWERED for question in questions),
        wrong=sum(not attempt.is_right for attempt in attempts),
        statuses=dict(Counter(attempt.status for attempt in attempts if attempt.end is End.REFUSED)),
        resends=len(attempts) - len(questions),
        asked_to_wait=sum(attempt.asked_to_wait for attempt in attempts),
        client_cpu=record.client_cpu,
        client_lag_p99_ms=quantile(lags, 0.99) * 1000,
        client_lag_max_ms=lags[-1] * 1000 if lags else 0.0,
        connections=record.connections,
        foreign_cores=foreign_cores,
    )


def _quality(question: Question) -> str:
    last = question.last
    return last.quality if last.end is End.ANSWERED and last.is_right else ""


@dataclass(frozen=True)
class Bin:
    """What ended in a short stretch of time: answers by quality, and attempts without one."""

    full: int
    partial: int
    fallback: int
    failed: int
    slowest_ms: float

    @property
    def is_clean(self) -> bool:
        """Whether nothing but full answers came."""
        return not (self.partial or self.fallback or self.failed)


def bins(record: Record, width_s: float = BIN_S) -> list[Bin]:
    """The run in short stretches, by the time at which attempts ended."""
    chosen: list[list[Attempt]] = [[] for _ in range(round(record.seconds / width_s))]
    for question in record.questions:
        for attempt in question.attempts:
            place = int((attempt.intended + attempt.latency) / width_s)
            if place < len(chosen):
                chosen[place].append(attempt)
    return [_bin(attempts) for attempts in chosen]


def _bin(attempts: Sequence[Attempt]) -> Bin:
    kinds = Counter(attempt.quality if attempt.end is End.ANSWERED else "failed" for attempt in attempts)
    slowest = max((attempt.latency for attempt in attempts), default=0.0)
    return Bin(kinds["full"], kinds["partial"], kinds["fallback"], kinds["failed"], slowest * 1000)


@dataclass(frozen=True)
class Recovery:
    """A run that was overloaded for a while."""

    level: Level
    bins: list[Bin]
    fine_bins: list[Bin]
    overload_begins_s: float
    overload_ends_s: float
    capacity: float
    # When the last request came up whose first answer was not a full one.
    last_degraded_s: float = 0.0

    @property
    def newcomers_s(self) -> float:
        """Who came so long after the overload, or later, got a full answer."""
        return max(0.0, self.last_degraded_s - self.overload_ends_s)

    @property
    def recovery_s(self) -> float:
        """From the end of the overload to the first second of full answers only; the rest of the run if none comes."""
        after = self.fine_bins[round(self.overload_ends_s / FINE_S) :]
        clean = round(CLEAN_S / FINE_S)
        for start in range(len(after) - clean + 1):
            if all(each.is_clean for each in after[start : start + clean]):
                return start * FINE_S
        return len(after) * FINE_S

    @property
    def full_share_before(self) -> float:
        """How much of the quality there was before: what full recovery means on this machine."""
        before = self.bins[: round(self.overload_begins_s / BIN_S)]
        return sum(each.full for each in before) / (
            sum(each.full + each.partial + each.fallback + each.failed for each in before) or 1
        )


@dataclass(frozen=True)
class TextTurn:
    """One round of the text work: the server at c=50, and the bare loop by batch size just before and after it."""

    server: Load
    bare_rps: dict[int, float]
    foreign_cores: float


@dataclass(frozen=True)
class CapacityTurn:
    """Requests/s of the server at c=50, full answers only, and of the bare loop just before."""

    served_rps: float
    bare_rps: float
    foreign_cores: float


@dataclass
class Results:
    """All that one run measured; parts that were not asked for stay empty."""

    # By model: closed-loop requests/s in full quality, before and after the open-loop levels; the bare loop's ceiling.
    capacity: dict[str, float] = field(default_factory=dict)
    # The mean of what was measured just before and just after each level, in their order.
    capacity_beside: dict[str, list[float]] = field(default_factory=dict)
    capacity_after: dict[str, float] = field(default_factory=dict)
    bare_rps: dict[str, float] = field(default_factory=dict)
    capacity_foreign: dict[str, float] = field(default_factory=dict)
    # By model or peer, then in the order of the levels.
    levels: dict[str, list[Level]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    computed_twice: dict[str, int] = field(default_factory=dict)
    recovery: Recovery | None = None
    text: list[TextTurn] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    closed_loop_errors: int = 0
    # Answers of less than full quality where there was all the time in the world.
    needlessly_degraded: int = 0

    def keep_capacity(self, model: str, turns: Sequence[CapacityTurn]) -> CapacityTurn:
        """Take the median over the quieter half, and say what it is."""
        quiet = sorted(turns, key=lambda turn: turn.foreign_cores)[: (len(turns) + 1) // 2]
        self.capacity[model] = median(turn.served_rps for turn in quiet)
        self.bare_rps[model] = median(turn.bare_rps for turn in quiet)
        self.capacity_foreign[model] = quiet[-1].foreign_cores
        return CapacityTurn(self.capacity[model], self.bare_rps[model], quiet[-1].foreign_cores)

    def our_levels(self) -> list[Level]:
        """All open-loop stretches on Timebound."""
        own = [level for name, levels in self.levels.items() if name != "fastapi" for level in levels]
        return [*own, self.recovery.level] if self.recovery else own

    def wrong(self) -> int:
        """Wrong answers of anyone, and errors where there is no overload."""
        levels = [level for levels in self.levels.values() for level in levels]
        levels += [self.recovery.level] if self.recovery else []
        return sum(level.wrong for level in levels) + self.closed_loop_errors

    def foreign_cores(self) -> float:
        """Most that other programs used during a measurement."""
        used = [level.foreign_cores for levels in self.levels.values() for level in levels]
        used += self.capacity_foreign.values()
        used += [self.recovery.level.foreign_cores] if self.recovery else []
        return max([*used, *(turn.foreign_cores for turn in self.text)], default=0.0)


def figures(results: Results) -> dict[str, float]:
    """The flat object for --json: the ensemble's by plain name, the single model's and the peer's with their names."""
    flat: dict[str, float] = {}
    for name, levels in results.levels.items():
        for level, beside in zip_longest(levels, results.capacity_beside.get(name, [])):
            flat |= _level_figures(name, level, beside)
    for name, rps in results.capacity.items():
        flat |= {f"{name}_capacity_rps": rps, f"{name}_bare_rps": results.bare_rps[name]}
        flat[f"{name}_capacity_of_bare"] = rps / results.bare_rps[name]
    flat |= {f"{name}_capacity_after_rps": rps for name, rps in results.capacity_after.items()}
    ours = results.our_levels()
    if ours:
        flat["late"] = sum(level.late for level in ours)
        flat["unanswered"] = sum(level.unanswered for level in ours)
        flat["computed_twice"] = sum(results.computed_twice.values())
        flat["client_cpu"] = max(level.client_cpu for level in ours)
        flat["client_lag_p99_ms"] = max(level.client_lag_p99_ms for level in ours)
    if results.recovery:
        flat["recovery_s"] = results.recovery.recovery_s
        flat["recovery_newcomers_s"] = results.recovery.newcomers_s
        flat["recovery_full_share_before"] = results.recovery.full_share_before
        flat["recovery_late"] = results.recovery.level.late
    flat |= _text_figures(results.text)
    flat["wrong"] = results.wrong()
    flat["needlessly_degraded"] = results.needlessly_degraded
    flat["server_complaints"] = len(results.complaints)
    flat["foreign_cpu"] = results.foreign_cores()
    return {name: round(value, 4) for name, value in flat.items()}


def _level_figures(name: str, level: Level, capacity: float | None) -> dict[str, float]:
    at = f"_{level.load:.1f}"
    plain = {
        f"{name}_p50_ms{at}": level.p50_ms,
        f"{name}_p99_ms{at}": level.p99_ms,
        f"{name}_late{at}": level.late,
        f"{name}_unanswered{at}": level.unanswered,
        f"{name}_goodput{at}": level.goodput,
    }
    if name == "ensemble":
        return plain | {f"in_time_by_model{at}": level.in_time_by_model, f"mean_members{at}": level.mean_members}
    if name == "single" and capacity:
        return plain | {
            f"single_full_share{at}": level.full_rps / capacity,
            f"single_capacity_beside{at}": capacity,
            f"single_fallback_in_time{at}": level.others_in_time,
            f"p50_over_deadline{at}": level.p50_ms / 1000 / DEADLINE_S,
        }
    return plain | {f"in_time_{name}{at}": level.in_time_by_model}


def _text_figures(turns: Sequence[TextTurn]) -> dict[str, float]:
    if not turns:
        return {}
    bare = {batch: median(turn.bare_rps[batch] for turn in turns) for batch in turns[0].bare_rps}
    best = max(bare, key=lambda batch: bare[batch])
    return {
        "text_c50_rps": median(turn.server.rps for turn in turns),
        "text_bare_rps": bare[best],
        "text_bare_batch": best,
        "text_c50_ratio": median(turn.server.rps / turn.bare_rps[best] for turn in turns),
        "text_p99_ms": median(turn.server.p99_ms for turn in turns),
        "text_long_p99_ratio": median(turn.server.long_p99_ms / turn.server.p99_ms for turn in turns),
        "text_client_cpu": max(turn.server.client_cpu for turn in turns),
    }


def table(results: Results) -> str:
    """Everything measured, for a person."""
    lines: list[str] = []
    for name, rps in results.capacity.items():
        after = results.capacity_after.get(name)
        lines.append(
            f"{name}: capacity {rps:.1f}/s (closed loop c=50, full answers), bare loop {results.bare_rps[name]:.1f}/s"
            + (f", capacity after the levels {after:.1f}/s" if after else "")
            + f", others {results.capacity_foreign[name]:.2f} cores"
        )
    if results.levels:
        lines.append(
            f"{'':10}{'load':>5}{'offered/s':>11}{'in time':>9}{'full/s':>8}{'fallback':>10}{'members':>9}{'p50 ms':>8}"
            f"{'p99 ms':>8}{'late':>6}{'no answer':>11}{'wrong':>7}{'resent':>8}{'client cpu':>12}"
            f"{'lag p99/max ms':>16}{'others':>8}"
        )
    for name, levels in results.levels.items():
        lines += [_row(name, level) for level in levels]
    for level, beside in zip(results.levels.get("single", []), results.capacity_beside.get("single", []), strict=True):
        share = level.full_rps / beside
        lines.append(
            f"single: at {level.load:.1f}x {share:.3f} of the capacity just before and after it, {beside:.1f}/s"
        )
    if results.recovery:
        lines.append(_row("recovery", results.recovery.level))
        lines.append(
            f"recovery: full quality again {results.recovery.recovery_s:.2f} s after the overload, "
            f"for requests that came {results.recovery.newcomers_s:.2f} s after it or later "
            f"(full answers before it: {results.recovery.full_share_before:.3f})"
        )
    for name, computed in results.computed.items():
        lines.append(f"{name}: the model worked on {computed} items, {results.computed_twice[name]} of them again")
    text = _text_figures(results.text)
    if text:
        lines.append(
            f"text: {text['text_c50_rps']:.0f}/s at c=50, bare loop {text['text_bare_rps']:.0f}/s at batch "
            f"{text['text_bare_batch']:.0f}: ratio {text['text_c50_ratio']:.3f}; p99 {text['text_p99_ms']:.0f} ms, "
            f"of the longest tenth {text['text_long_p99_ratio']:.2f} times that"
        )
    if results.needlessly_degraded:
        lines.append(f"closed loop: {results.needlessly_degraded} answers were not full, with a deadline far away")
    foreign = results.foreign_cores()
    verdict = "quiet enough" if foreign <= QUIET_CORES else "too much to trust these figures"
    lines.append(f"other programs used up to {foreign:.2f} cores: {verdict}")
    return "\n".join(lines)


def _row(name: str, level: Level) -> str:
    load = f"{level.load:.1f}x" if level.load else "mixed"
    refused = f"  refused {level.statuses}" if level.statuses else ""
    refused += f", {level.asked_to_wait} asked to wait longer" if level.asked_to_wait else ""
    return (
        f"{name:10}{load:>5}{level.offered:11.1f}{level.in_time_by_model:9.4f}{level.full_rps:8.1f}"
        f"{level.fallback_in_time:10.4f}{level.mean_members:9.2f}{level.p50_ms:8.1f}{level.p99_ms:8.1f}{level.late:6d}"
        f"{level.unanswered:11d}{level.wrong:7d}{level.resends:8d}{level.client_cpu:12.2f}"
        f"{f'{level.client_lag_p99_ms:.1f}/{level.client_lag_max_ms:.1f}':>16}{level.foreign_cores:8.2f}{refused}"
    )
