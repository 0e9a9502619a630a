"""What each rule and each constant of the policy is worth: the simulated figures without it, minus those with it.

Each line leaves one out, or takes another value, and prints the change in points of the clairvoyant bound at each load
and in bursts, and in brackets that of the median answer over the deadline. For ensembles of three it prints the share
in time in points, members, and the longest recovery of `benchmarks/policy/scheduler.py`. The seeds are not those that
the benchmark reports on: constants are chosen here, and judged there.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.policy.scheduler import BURSTS, CURVES, recovery, run

SEEDS = (11, 12, 13, 14, 15, 16)
LOADS = (1.0, 1.2, 1.5, 3.0, BURSTS)
ENSEMBLES = (("cpu", 1.2), ("cpu", 3.0), ("gpu", 3.0))
RECOVERIES = (2.7, 2.85, 3.0)
SECONDS = 40.0

Change = tuple[str, Any]  # "module.NAME" or "module.Class.name" of the scheduler's room, and what it is instead

VARIANTS: dict[str, tuple[Change, ...]] = {
    "no newest first": (("load.LASTING_RATE", inf),),
    "never behind": (("load.PATIENCE", inf),),
    "patience 2": (("load.PATIENCE", 2.0),),
    "short memory 0.5": (("load.SHORT_MEMORY", 0.5),),
    "ensembles weigh 1": (("load.ENSEMBLE_WEIGHT", 1.0),),
    "no burst rate": (("policy.BURST_RATE", 1.0),),
    "no least rate": (("policy.LEAST_RATE", 0.0),),
    "least rate as in bursts": (("policy.LEAST_RATE", 0.95),),
    "no reserve for members": (("policy.MEMBER_RESERVE", 0.0),),
    "no long shot": (("policy._long_shot", lambda view: None),),
    "no tries of larger": (("estimate.Estimate.wants_try", lambda self, batch: False),),
    "1 try": (("estimate.ENOUGH_TRIES", 1),),
    "no tolerance": (("shape.RATE_TOLERANCE", 0.0),),
    "no line noise": (("shape.LINE_NOISE", 0.0),),
    "cells at 0.15": (("shape.CELL_RATE", 0.15), ("estimate.CELL_RATE", 0.15)),
    "drift at 0.1": (("estimate.DRIFT_RATE", 0.1),),
    "no backlog bound": (("backlog.BACKLOG_DEADLINES", inf),),
    "batches up to 0.6": (("served.BATCH_SHARE", 0.6),),
}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="lines whose name holds one of these words")
    parser.add_argument("--alone", action="store_true", help="no ensembles: half of the time")
    chosen = parser.parse_args()
    parts = [singles] if chosen.alone else [singles, ensembles]
    print("            " * 3 + "".join(f"{name:>13}" for part in parts for name in part(dry=True)))
    with_all = [part() for part in parts]
    told("all of it", [f"{a:.3f} ({b:.2f})" for figures in with_all for a, b in figures.values()])
    for name, changes in VARIANTS.items():
        if chosen.only and not any(word in name for word in chosen.only):
            continue
        with changed(changes):
            without = [part() for part in parts]
        cells = []
        for before, after in zip(with_all, without, strict=True):
            for key, (share, second) in after.items():
                cells.append(f"{100 * (share - before[key][0]):+.1f} ({second - before[key][1]:+.2f})")
        told(name, cells)
    return 0


def told(name: str, cells: list[str]) -> None:
    print(f"{name:36}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


def singles(dry: bool = False) -> dict[str, tuple[float, float]]:
    """Share of the bound and median over the deadline, by curve and load."""
    found = {}
    for curve, speed in CURVES.items():
        for load in LOADS:
            name = f"{curve} {'bursts' if load == BURSTS else load}"
            runs = [] if dry else [run(speed, load, seed, SECONDS) for seed in SEEDS]
            found[name] = (_mean(r[0] / r[1] for r in runs), _mean(r[2] for r in runs))
    return found


def ensembles(dry: bool = False) -> dict[str, tuple[float, float]]:
    """In time and members at loads; seconds of recovery (as a hundredth of a point) and median after an overload."""
    found = {}
    for curve, load in ENSEMBLES:
        runs = [] if dry else [run(replace(CURVES[curve], members=3), load, seed, 25.0) for seed in SEEDS[:3]]
        found[f"3x{curve} {load}"] = (_mean(r[0] for r in runs), _mean(r[3] for r in runs))
    for load in RECOVERIES:
        back = [] if dry else [recovery(load, seed) for seed in SEEDS]
        found[f"after {load}"] = (_mean(r[1] for r in back), max((r[0] for r in back), default=0.0))
    return found


def _mean(values: Iterator[float]) -> float:
    listed = list(values)
    return mean(listed) if listed else 0.0


@contextmanager
def changed(changes: tuple[Change, ...]) -> Iterator[None]:
    """The scheduler with other constants or rules."""
    undo: list[Callable[[], None]] = []
    for path, value in changes:
        *where, name = path.split(".")
        holder: Any = import_module(f"timebound.scheduler.{where[0]}")
        for part in where[1:]:
            holder = getattr(holder, part)
        undo.append(partial(setattr, holder, name, getattr(holder, name)))
        setattr(holder, name, value)
    try:
        yield
    finally:
        for action in undo:
            action()


if __name__ == "__main__":
    sys.exit(main())
