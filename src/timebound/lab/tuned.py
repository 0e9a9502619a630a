"""What a tuning found out, for people: tables, sentences that explain the choice, and the settings file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from timebound.lab.curve import Point, option_of
from timebound.lab.engines import best_batch
from timebound.lab.overload import TOO_LITTLE
from timebound.lab.results import in_columns
from timebound.lab.tune import NOISE, QUIET_CORES, Settings, Trial


def curve_table(points: Sequence[Point]) -> str:
    """One line per batch size."""
    rows = [["batch", "ms", "ms/item", "prepare", "infer", "finish", "memory MiB"]]
    for point in points:
        timing = point.timing
        times = (point.seconds, point.per_item_s, timing.prepare_s, timing.infer_s, timing.finish_s)
        rows.append([str(point.batch), *(f"{seconds * 1000:.2f}" for seconds in times), f"{point.memory_mib:.0f}"])
    members = ", ".join(f"{name} {mib:.1f}" for name, mib in points[-1].members_mib.items())
    return "\n".join([*in_columns(rows), *([f"memory MiB of each member: {members}"] if members else [])])


def trial_table(trials: Sequence[Trial]) -> str:
    """One line per settings."""
    rows = [["settings", "offered/s", "useful/s in time", "goodput", "alone p50 ms", "memory MiB", "others", "turns"]]
    for trial in trials:
        load = [f"{trial.offered_rps:.1f}", f"{trial.useful_rps:.1f}", f"{trial.goodput:.3f}"]
        cost = [f"{trial.alone_p50_ms:.2f}", f"{trial.memory_mib:.0f}", f"{trial.foreign_cores:.2f}", str(trial.turns)]
        rows.append([str(trial.settings), *load, *cost])
    return "\n".join(in_columns(rows))


def warning(trials: Sequence[Trial]) -> str:
    """What to know before trusting them; empty if there is nothing."""
    most = max(trial.foreign_cores for trial in trials)
    if most <= QUIET_CORES:
        return ""
    return f"other programs used up to {most:.1f} cores; do not trust this, run it again with --fresh when it is quiet"


def explain(points: Sequence[Point], trials: Sequence[Trial], chosen: Trial, deadline_s: float) -> str:
    """The choice in sentences; `points` are those of the threads chosen, the first trial that of the server's own."""
    default = trials[0]
    if chosen is default:
        first = f"{chosen.settings} is what the server chooses itself, and nothing was better by more than {NOISE:.0%}."
    else:
        gain = chosen.useful_rps / default.useful_rps - 1 if default.useful_rps else 1.0
        first = (
            f"{chosen.settings} answers {gain:+.0%} in time of what the server's own choice, {default.settings}, does."
        )
    sentences = [
        first,
        f"Offered {chosen.offered_rps:.0f} requests/s it answered {chosen.useful_rps:.0f} of them per second within "
        f"{deadline_s * 1000:g} ms; a lone request takes {chosen.alone_p50_ms:.1f} ms.",
        _about_load(chosen),
        _about_batches(points, deadline_s),
        _about_stages(points[0]),
    ]
    others = [trial for trial in trials if trial is not chosen]
    sentences += [_about_other(trial, chosen) for trial in others]
    return "\n".join(sentence for sentence in sentences if sentence)


def _about_load(chosen: Trial) -> str:
    if chosen.useful_rps < TOO_LITTLE * chosen.offered_rps:  # not by goodput: partial answers are in time too
        return ""
    return "That was all of it: nothing that could be asked was too much for it, so other settings may do as well."


def _about_batches(points: Sequence[Point], deadline_s: float) -> str:
    alone = points[0]
    best = best_batch(points, deadline_s)
    saved = 1 - best.per_item_s / alone.per_item_s
    if saved < 0.05:
        return "Batches do not make an item cheaper here; the server runs small ones."
    return (
        f"In a batch of {best.batch} an item costs {best.per_item_s * 1000:.2f} ms, {saved:.0%} less than alone; such "
        f"a batch takes {best.seconds * 1000:.0f} ms of the {deadline_s * 1000:g} ms that there are."
    )


def _about_stages(alone: Point) -> str:
    outside = (alone.timing.prepare_s + alone.timing.finish_s) / (alone.seconds or 1.0)
    if outside < 0.3:
        return ""
    return f"prepare and finish take {outside:.0%} of a lone item's time: that is where to look for speed."


def _about_other(trial: Trial, chosen: Trial) -> str:
    change = trial.useful_rps / chosen.useful_rps - 1 if chosen.useful_rps else 0.0
    memory = trial.memory_mib / chosen.memory_mib - 1 if chosen.memory_mib else 0.0
    return f"{trial.settings}: {change:+.0%} answered in time, {memory:+.0%} memory."


def settings_text(before: str, settings: Settings, model: str = "") -> str:
    """A timebound.toml with these settings; whatever else it said stays. An engine is for `model`, if that is named."""
    values: dict[str, str] = {name: str(getattr(settings, name)) for name in ("workers", "slots", "threads")}
    text = before
    if settings.hands is not None:
        values["hands"] = str(settings.hands)
    if settings.engine:
        option = option_of(settings.engine)
        values[option] = _by_model(before, option, settings.engine, model)
        text = re.sub(_TABLE.format(option), "", text)
    for name, value in reversed(values.items()):
        line = f"{name} = {value}"
        text, count = re.subn(rf"(?m)^{name}\s*=.*$", line, text, count=1)
        if not count:
            # Above all tables: a line below one would belong to it.
            text = f"{line}\n{text}"
    return text


# The heading and the lines up to the next one.
_TABLE = r"(?m)^\[{}\][^\n]*\n?(?:(?!\[).*\n?)*"


def _by_model(before: str, option: str, engine: str, model: str) -> str:
    if not model:
        return f'"{engine}"'
    known = tomllib.loads(before).get(option, {})
    named = {**(known if isinstance(known, dict) else {"": known}), model: engine}
    return "{ " + ", ".join(f'"{name}" = "{each}"' for name, each in named.items()) + " }"


def write_settings(file: Path, settings: Settings, model: str = "") -> None:
    """Put the settings into a file, in one step."""
    before = file.read_text() if file.exists() else ""
    fresh = file.with_suffix(".new")
    fresh.write_text(settings_text(before, settings, model))
    fresh.replace(file)
