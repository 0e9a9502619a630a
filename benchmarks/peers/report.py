"""What a run of the peers saw, as one table for a person and as flat figures for a program."""

from collections.abc import Callable, Iterable
from statistics import median

from benchmarks.peers.record import Duel, Row, Run
from benchmarks.tools.bars import Bar
from benchmarks.tools.report import QUIET_CORES

OURS = "timebound"
BUSY = 50
ALONE = 1
# What Timebound must reach: times the best untuned peer, times the best tuned one, share of the fastest.
UNTUNED_GOAL, TUNED_GOAL, CLOSED_GOAL = 1.7, 1.0, 0.97
# More than this, and loads are no longer what they are called.
MOST_DRIFT = 0.1
UNTUNED_LOADS, TUNED_LOADS = (1.0, 1.5, 2.0), (1.5, 2.0)
BARS = (
    # At its capacity a server without limits takes more than three seconds to fall behind.
    Bar("ratio_1.0", at_least=UNTUNED_GOAL, is_quick=False),
    *(Bar(f"ratio_{load}", at_least=UNTUNED_GOAL) for load in UNTUNED_LOADS[1:]),
    *(Bar(f"ratio_tuned_{load}", at_least=TUNED_GOAL) for load in TUNED_LOADS),
    # Two rounds of 1.5 s do not tell 0.97 from 0.95.
    Bar("closed_loop_over_fastest", at_least=CLOSED_GOAL, is_quick=False),
)


def table(run: Run) -> str:
    """Everything measured, as it stands in the documentation."""
    measured = [row for row in run.rows if row.first_answer_s]
    loads = _loads(run)
    lines = [
        f"{run.began}, {run.machine}",
        f"bare loop {_capacity(run):.1f}/s at the beginning, {_spread(run)}; 1.0x is that rate; "
        f"{run.level_s:.0f} s per level",
        "",
        _head(loads),
    ]
    for title, rows in _groups(measured):
        lines += [title, *(_row(row, loads) for row in rows)] if rows else []
    lines += ["", *_quality(measured), *_verdicts(run), *_duel_lines(run.duels), "", *map(_settings, measured)]
    lines += [f"{row.name}: {_reason(row)}" for row in run.rows if row.failure]
    lines.append(_noise(run))
    return "\n".join(lines)


def _groups(rows: list[Row]) -> Iterable[tuple[str, list[Row]]]:
    yield "ours, untuned", [row for row in rows if row.is_ours]
    yield "untuned", [row for row in rows if not row.is_ours and not row.is_tuned]
    yield "tuned by hand for this model, machine and deadline", [row for row in rows if row.is_tuned]


def _loads(run: Run) -> list[float]:
    return sorted({each.level.load for row in run.rows for each in row.overload})


def _capacity(run: Run) -> float:
    return next((row.capacity for row in run.rows), 0.0)


def _spread(run: Run) -> str:
    rates = [row.bare_rps for row in run.rows if row.bare_rps]
    return f"{min(rates):.1f} to {max(rates):.1f}/s before each server" if rates else "not measured again"


def _head(loads: list[float]) -> str:
    goodput = "".join(f"{f'{load:.1f}x':>7}" for load in loads)
    return (
        f"{'':18}{'c=1 ms':>8}{'c=50/s':>8}{'of bare':>9}{goodput}{'worked':>8}{'kill':>7}"
        f"{'failed':>8}{'poison':>8}{'MiB':>7}{'start s':>9}{'others':>8}"
    )


def _row(row: Row, loads: list[float]) -> str:
    alone = next((each.p50_ms for each in row.closed if each.concurrency == ALONE), None)
    rps = row.closed_rps(BUSY)
    waste = max((each.worked_per_answer for each in row.overload), default=None)
    kill, poison = row.kill, row.poison
    return (
        f"  {row.name:16}{_cell(alone, 8, 1)}{_cell(rps or None, 8, 1)}"
        f"{_cell(rps / row.bare_rps if row.bare_rps and rps else None, 9, 3)}"
        + "".join(_cell(row.goodput(load), 7, 3) for load in loads)
        + f"{_cell(waste, 8, 2)}{_cell(kill.goodput if kill else None, 7, 3)}"
        f"{kill.failed_attempts if kill else '-':>8}{f'{poison.good_answered}/{poison.good}' if poison else '-':>8}"
        f"{_cell(row.pss_mib or None, 7, 0)}{_cell(row.first_answer_s, 9, 2)}{_cell(_foreign(row), 8, 2)}"
    )


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def _quality(rows: list[Row]) -> list[str]:
    """How much of the ensemble is in the answers: only Timebound may leave networks out."""
    lines = []
    for row in rows:
        if row.is_ours and row.overload:
            levels = [each.level for each in row.overload]
            full = ", ".join(f"{level.full_rps / level.offered:.3f} at {level.load:.1f}x" for level in levels)
            members = ", ".join(f"{level.mean_members:.2f}" for level in levels)
            lines.append(f"{row.name}: answers by all three networks: {full}; networks per answer: {members}")
        if row.is_ours and row.kill:
            lines.append(f"{row.name}: fallbacks after the kill: {row.kill.fallbacks:.3f} of the requests")
    return lines


def _best(run: Run, load: float, accept: Callable[[Row], bool]) -> tuple[str, float] | None:
    found = [(row.name, row.goodput(load)) for row in run.rows if not row.is_ours and accept(row)]
    known = [(name, goodput) for name, goodput in found if goodput is not None]
    return max(known, key=lambda entry: entry[1], default=None)


def _ours(run: Run) -> Row | None:
    return next((row for row in run.rows if row.name == OURS), None)


def _over(ours: float, theirs: float) -> float:
    # A peer that answered nothing is taken for one that answered one in ten thousand.
    return ours / max(theirs, 1e-4)


def figures(run: Run) -> dict[str, float]:
    """The flat object for --json."""
    flat: dict[str, float] = {"bare_rps": _capacity(run)}
    for row in run.rows:
        flat |= _row_figures(row)
    for load in _loads(run):
        flat |= _ratios(run, load)
    if closed := _closed_over_fastest(run):
        flat["closed_loop_over_fastest"] = closed[1]
    flat["peers_measured"] = sum(bool(row.overload) and not row.is_ours for row in run.rows)
    flat["peers_failed"] = sum(bool(row.failure) for row in run.rows)
    flat["bare_drift"] = _drift(run)
    flat["foreign_cpu"] = max(map(_foreign, run.rows), default=0.0)
    return {name: round(value, 4) for name, value in flat.items()}


def _row_figures(row: Row) -> dict[str, float]:
    name = row.name
    flat = {f"closed_loop_{each.concurrency}_{name}": each.rps for each in row.closed}
    for each in row.overload:
        at = f"{each.level.load:.1f}_{name}"
        flat |= {f"goodput_{at}": each.level.goodput, f"full_{at}": each.level.full_rps / each.level.offered}
        flat |= {f"worked_per_answer_{at}": each.worked_per_answer, f"p50_ms_{at}": each.level.p50_ms}
    if row.kill:
        flat |= {f"kill_goodput_{name}": row.kill.goodput, f"kill_failed_{name}": row.kill.failed_attempts}
        flat[f"kill_fallbacks_{name}"] = row.kill.fallbacks
    if row.poison:
        flat[f"poison_good_answered_{name}"] = row.poison.good_answered
    if row.first_answer_s:
        flat |= {f"pss_mib_{name}": row.pss_mib, f"start_s_{name}": row.first_answer_s}
    return flat


def _ratios(run: Run, load: float) -> dict[str, float]:
    row, flat = _ours(run), {}
    ours = row.goodput(load) if row else None
    for kind, is_tuned in (("untuned", False), ("tuned", True)):
        best = _best(run, load, lambda row, is_tuned=is_tuned: row.is_tuned is is_tuned)  # type: ignore[misc]
        if best is not None:
            flat[f"goodput_{load:.1f}_best_peer_{kind}"] = best[1]
            if ours is not None:
                name = "ratio" if kind == "untuned" else "ratio_tuned"
                flat[f"{name}_{load:.1f}"] = _over(ours, best[1])
    return flat


def _closed_over_fastest(run: Run) -> tuple[str, float] | None:
    """Timebound to the fastest peer: the median of a duel's rounds, else each against the bare loop beside it."""
    if run.duels:
        duel = min(run.duels, key=_duel_ratio)
        return duel.peer, _duel_ratio(duel)
    paces = {row.name: row.closed_rps(BUSY) / row.bare_rps for row in run.rows if row.bare_rps}
    peers = {row.name: paces[row.name] for row in run.rows if not row.is_ours and paces.get(row.name)}
    if not peers or not paces.get(OURS):
        return None
    fastest = max(peers, key=lambda name: peers[name])
    return fastest, paces[OURS] / peers[fastest]


def _duel_ratio(duel: Duel) -> float:
    return median(ours / max(theirs, 1e-4) for ours, theirs in zip(duel.ours, duel.theirs, strict=True))


def _duel_lines(duels: list[Duel]) -> list[str]:
    def told(name: str, rates: list[float]) -> str:
        return f"{name} {' '.join(f'{rate:.1f}' for rate in rates)}"

    if not duels:
        return []
    all_rates = {OURS: duels[0].ours, **{duel.peer: duel.theirs for duel in duels}, "bare loop": duels[0].bare}
    return ["c=50 in turn, requests/s: " + "; ".join(told(name, rates) for name, rates in all_rates.items())]


def _verdicts(run: Run) -> list[str]:
    """What the bars are about, with the names of the peers."""
    row, lines = _ours(run), []
    if row is None:
        return []
    for loads, is_tuned in ((UNTUNED_LOADS, False), (TUNED_LOADS, True)):
        for load in loads:
            best = _best(run, load, lambda row, is_tuned=is_tuned: row.is_tuned is is_tuned)  # type: ignore[misc]
            ours = row.goodput(load)
            if best is None or ours is None:
                continue
            kind = "tuned" if is_tuned else "untuned"
            lines.append(
                f"{load:.1f}x: {_over(ours, best[1]):.2f} times the best {kind} peer ({best[0]} {best[1]:.3f})"
            )
    if closed := _closed_over_fastest(run):
        lines.append(f"closed loop, c={BUSY}: {closed[1]:.3f} of the fastest peer ({closed[0]})")
    return lines


def _settings(row: Row) -> str:
    return f"{row.name}: {row.package} {row.version}; {row.settings}"


def _reason(row: Row) -> str:
    """Why there is nothing more of a contestant: its first line and the last that its server said."""
    said = row.failure.splitlines()
    return said[0] if len(said) == 1 else f"{said[0]} {said[-1]}"


def _foreign(row: Row) -> float:
    used = [each.foreign_cores for each in row.closed]
    used += [each.level.foreign_cores for each in row.overload]
    return max([*used, row.kill.foreign_cores if row.kill else 0.0])


def _drift(run: Run) -> float:
    return max((abs(row.bare_rps / row.capacity - 1) for row in run.rows if row.bare_rps), default=0.0)


def _noise(run: Run) -> str:
    """Whether others disturbed, or the machine's pace changed from one server to the next."""
    foreign = max(map(_foreign, run.rows), default=0.0)
    drift = _drift(run)
    is_quiet = foreign <= QUIET_CORES and drift <= MOST_DRIFT
    verdict = "quiet enough" if is_quiet else "too much to trust these figures"
    return f"other programs used up to {foreign:.2f} cores, the bare loop's rate moved by up to {drift:.0%}: {verdict}"
