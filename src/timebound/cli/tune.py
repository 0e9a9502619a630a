"""`timebound tune`: measure a model on this machine and write down the settings that serve it best."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

from timebound.app_settings import hand_on
from timebound.cli.values import read_share, read_time, read_whole
from timebound.cli.verb import add_set, check_writable, configuration, declare, profiles_of
from timebound.config import FILE
from timebound.errors import SetupError
from timebound.lab import tuned
from timebound.lab.engines import Judgement
from timebound.lab.tune import Target, Tuning, average, choose, curve_name
from timebound.machine.cores import cores
from timebound.profile import ProfileFile, this_machine
from timebound.target import check_target, resolved


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "tune",
        "find the settings that answer most in time on this machine",
        "Measure how long batches take, find out which engines, or modes of torch, answer alike, try divisions "
        "of the cores into workers, slots and threads on real servers under overload, and write down what answers most "
        "before the deadline.",
    )
    add = parser.add_argument
    target = "what to tune: a Python file, a model file or a folder, as for `timebound serve`"
    add("target", type=Path, help=target)
    add("--model", default="", metavar="NAME", help="name of the model to tune, if there are several")
    add("--deadline", type=read_time, metavar="TIME", help="deadline to answer in (default: the model's own)")
    trial = "how long each trial of a setting takes (default: 3)"
    add("--seconds", type=read_time, default=3.0, metavar="TIME", help=trial)
    turns = "how often each setting is tried; those far behind are left out earlier (default: 3)"
    add("--rounds", type=read_whole, default=3, metavar="N", help=turns)
    of_engines = parser.add_argument_group("engines of ONNX files, modes of torch").add_argument
    share = "minimum share of inputs on which an engine must agree with onnxruntime (default: 0.99)"
    of_engines("--agreement", type=read_share, default=0.99, metavar="SHARE", help=share)
    within = "by how much numbers in an answer may differ, as a share of the largest one (default: 0.05)"
    of_engines("--tolerance", type=read_share, default=0.05, metavar="SHARE", help=within)
    more = "more inputs to compare engines on: a file of JSON lines, or a folder of bodies"
    of_engines("--samples", type=Path, metavar="PATH", help=more)
    add("--quick", action="store_true", help="try each setting once, for 1.5 seconds")
    output = f"file to write the settings to; its other lines stay (default: {FILE})"
    add("--output", type=Path, default=Path(FILE), metavar="FILE", help=output)
    anyway = "write the settings though other programs disturbed the measurement"
    add("--anyway", action="store_true", help=anyway)
    add("--fresh", action="store_true", help="measure everything again, also what an earlier run measured")
    add_set(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Measure what is missing, then show, explain and write."""
    hand_on(chosen.set)
    check_target(chosen.target)
    check_writable(chosen.output)
    if chosen.samples is not None and not chosen.samples.exists():
        raise SetupError(f"no samples at {chosen.samples}; give a file of JSON lines or a folder")
    target = _target(chosen)
    tuning = Tuning(target, _state(chosen), lambda text: print(f"measuring {text}", file=sys.stderr, flush=True))
    if not chosen.fresh and tuning.resume():
        print("going on from an earlier run; --fresh begins anew", file=sys.stderr)
    try:
        tuning.run()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        _show(tuning)
        return 130
    _show(tuning)
    return _write(chosen, target, tuning)


def _target(chosen: argparse.Namespace) -> Target:
    samples = str(chosen.samples.resolve()) if chosen.samples is not None else ""
    return Target(
        path=resolved(chosen.target),
        model=chosen.model,
        deadline_s=chosen.deadline or configuration({}, chosen.target).deadline,
        seconds=1.5 if chosen.quick else chosen.seconds,
        rounds=1 if chosen.quick else chosen.rounds,
        cores=cores(),
        judgement=Judgement(chosen.agreement, chosen.tolerance, samples),
    )


def _state(chosen: argparse.Namespace) -> Path:
    digest = hashlib.sha256(f"{chosen.target.resolve()} {chosen.model}".encode()).hexdigest()[:12]
    folder = profiles_of(chosen.target) or Path("~/.cache/timebound").expanduser()
    return folder / f"tune-{chosen.target.stem}-{digest}.json"


def _show(tuning: Tuning) -> None:
    for name, points in tuning.record.curves.items():
        print(f"batches with {name}:")
        print(tuned.curve_table(points), end="\n\n")
    if tuning.record.verdicts:
        print("\n".join(tuning.verdicts()), end="\n\n")
    if tuning.record.trials:
        print(tuned.trial_table(average(tuning.record.trials)))


def _write(chosen: argparse.Namespace, target: Target, tuning: Tuning) -> int:
    """Not what is said not to be trusted."""
    record = tuning.record
    trials = average(record.trials)
    best = choose(trials)
    points = record.curves[curve_name(best.settings.threads, best.settings.engine)]
    print("\n" + tuned.explain(points, trials, best, tuning.deadline_s))
    if warning := tuned.warning(trials):
        print(f"warning: {warning}", file=sys.stderr)
        if not chosen.anyway:
            print(f"nothing was written; --anyway writes {best.settings}", file=sys.stderr)
            return 1
    tuned.write_settings(chosen.output, best.settings, target.model)
    print(f"\nwrote {chosen.output}: {best.settings}")
    folder = profiles_of(target.path)
    if folder is not None and best.profile:
        slots = best.settings.workers * best.settings.slots
        ProfileFile(folder, target.path).write(dict(best.profile), this_machine(slots))
        print(f"wrote the profile that the scheduler starts from, in {folder}")
    return 0
