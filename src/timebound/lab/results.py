"""Results of a bench run: a table for a person, a document for a program, and two documents side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.lab.bench import Level

FORMAT = 1
# (figure, heading, digits, whether more is better; None where neither is)
COLUMNS: Sequence[tuple[str, str, int, bool | None]] = (
    ("offered_rps", "offered/s", 1, None),
    ("answered_rps", "answered/s", 1, True),
    ("goodput", "goodput", 4, True),
    ("in_time", "in time", 4, True),
    ("min_ms", "min ms", 2, False),
    ("mean_ms", "mean", 2, False),
    ("p50_ms", "p50", 2, False),
    ("p90_ms", "p90", 2, False),
    ("p99_ms", "p99", 2, False),
    ("p99_9_ms", "p99.9", 2, False),
    ("max_ms", "max", 2, False),
    ("failed", "failed", 0, False),
    ("wrong", "wrong", 0, False),
)
_ENDS = {"refused": "refused", "timed_out": "timed out", "lost": "connection lost"}


def document(target: str, path: str, levels: Sequence[Level], version: str) -> dict[str, Any]:
    """Everything a run found out, for JSON; each level's figures are flat."""
    return {
        "format": FORMAT,
        "timebound": version,
        "target": target,
        "path": path,
        "levels": [
            {
                "load": level.plan.title,
                "at": level.plan.load,
                "is_open_loop": level.plan.is_open,
                "is_interrupted": level.is_interrupted,
                "plan": msgspec.to_builtins(level.plan, enc_hook=str),
                "figures": level.figures,
                "warnings": level.warnings,
                **level.details,
            }
            for level in levels
        ],
    }


def read_document(file: Path) -> dict[str, Any]:
    """A document that was written before; raises `SetupError` if it is none."""
    try:
        found = msgspec.json.decode(file.read_bytes())
        if found["format"] == FORMAT and all("figures" in level for level in found["levels"]):
            return dict(found)
    except OSError as error:
        raise SetupError(f"cannot read {file}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        pass
    raise SetupError(f"{file} is no result of `timebound bench --json`")


def rows(levels: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A heading, and a row for each level of a document."""
    found = [["load", *(heading for _, heading, _, _ in COLUMNS)]]
    for level in levels:
        figures = level["figures"]
        is_silent = figures["requests"] == figures["failed"]  # no answer has no latency
        cells = ["-" if is_silent and name.endswith("_ms") else f"{figures[name]:,.{n}f}" for name, _, n, _ in COLUMNS]
        found.append([level["load"], *cells])
    return found


def table(document: Mapping[str, Any]) -> str:
    """One line per level, then what they were made of."""
    levels = document["levels"]
    lines = in_columns(rows(levels))
    for level in levels:
        if len(levels) > 1:
            lines += ["", f"{level['load']}:"]
        lines += _composition(level)
    return "\n".join(lines)


def _composition(level: Mapping[str, Any]) -> list[str]:
    figures = level["figures"]
    cut = ", cut short" if level["is_interrupted"] else ""
    goal = f"within {level['plan']['deadline_s'] * 1000:g} ms"
    lines = [
        f"  {figures['requests']:,.0f} requests in {figures['seconds']:.1f} s{cut}; {figures['goodput']:.2%} answered "
        f"by the model {goal}, {figures['in_time'] - figures['goodput']:.2%} by a fallback"
    ]
    qualities = [f"{name} {figures[f'{name}_share']:.1%}" for name in ("full", "partial", "fallback")]
    members = f"; {figures['mean_members']:.2f} members on average" if figures["mean_members"] else ""
    lines.append(f"  answers: {', '.join(qualities)}{members}{_counted('; source', level['sources'])}")
    failures = [f"{word} {figures[name]:,.0f}" for name, word in _ENDS.items() if figures[name]]
    if failures:
        why = {**{f"status {status}": n for status, n in level["statuses"].items()}, **level["losses"]}
        lines.append(f"  failed: {', '.join(failures)}{_counted(':', why)}")
    extra = {name: figures[name] for name in ("late", "resends", "unfinished", "stale_connections") if figures[name]}
    if extra:
        lines.append("  " + ", ".join(f"{name.replace('_', ' ')} {count:,.0f}" for name, count in extra.items()))
    lines.append(
        f"  client: {figures['client_cpu']:.2f} cores, {figures['connections']:,.0f} connections, loop lag p99 "
        f"{figures['client_loop_lag_p99_ms']:.1f} ms, send lag p99 {figures['client_send_lag_p99_ms']:.1f} ms"
    )
    return lines


def _counted(lead: str, counts: Mapping[str, int]) -> str:
    return f"{lead} " + ", ".join(f"{name} {count:,}" for name, count in counts.items()) if counts else ""


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Levels of the same load side by side, with what changed."""
    before = {level["load"]: level for level in old["levels"]}
    lines: list[str] = []
    for level in new["levels"]:
        earlier = before.pop(level["load"], None)
        if earlier is None:
            lines.append(f"{level['load']}: not in the old results")
            continue
        found = [[level["load"], "old", "new", "change", ""]]
        for name, heading, digits, more_is_better in COLUMNS:
            was, now = earlier["figures"].get(name), level["figures"][name]
            if was is None:  # an earlier release did not measure it
                continue
            change = _change(was, now, more_is_better)
            found.append([f"  {heading}", f"{was:,.{digits}f}", f"{now:,.{digits}f}", *change])
        lines += in_columns(found)
    lines += [f"{load}: not in the new results" for load in before]
    return "\n".join(lines)


def have_a_level_in_common(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether there is anything to compare."""
    return bool({level["load"] for level in old["levels"]} & {level["load"] for level in new["levels"]})


def _change(was: float, now: float, more_is_better: bool | None) -> tuple[str, str]:
    """The change in percent (or plain, from zero), and whether it is for the better."""
    if was == now:
        return "", ""
    shown = f"{(now - was) / was:+.1%}" if was else f"{now:+g}"
    if more_is_better is None:
        return shown, ""
    # What differs by less than one in fifty is called the same; two runs of one server do.
    if was and abs(now - was) / abs(was) < 0.02:
        return shown, "same"
    return shown, "better" if (now > was) == more_is_better else "worse"
