"""`timebound history`: the files of a history, read without its server: exported, or counted."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from timebound.cli.compared import show_versions
from timebound.cli.verb import declare, examples_of
from timebound.clock import wall
from timebound.errors import RequestError, SetupError
from timebound.observe.exports import FORMATS
from timebound.observe.filter import Filter, filter_of
from timebound.observe.history import COUNTED, ROLLED_UP, History
from timebound.observe.versions import beside

_STEPS = {"minute": 60, "hour": 3600, "day": 86_400}
_LONGEST = {"minute": 86_400, "hour": 30 * 86_400, "day": 10 * 366 * 86_400}
"""Seconds that are told without since and until."""
_DOES = {
    "export": "write outcomes, with what was kept of bodies, to a file",
    "stats": "count outcomes by label, user, day or another field",
    "compare": "say how a model's versions differ: in time, speed, confidence, labels, right or wrong",
}


def add_to(verbs: Any) -> None:
    """Declare the verb, what it does, and the flags."""
    history = declare(verbs, "history", "export or count what was asked and answered, from the folder of --history")
    does = history.add_subparsers(required=True, metavar="DOES")
    for name, meaning in _DOES.items():
        verb = does.add_parser(
            name,
            help=meaning,
            description=meaning[0].upper() + meaning[1:] + ".",
            epilog=examples_of("history"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_argument("folder", type=Path, help="folder that the server writes its history to")
        only = "only outcomes with this field, such as model=digits, quality=partial, below=0.6 (less sure than that), "
        only += "since=2026-11-18 (UTC), disagreed=1, has_input=1 or verdict=wrong; may be repeated"
        verb.add_argument("--only", action="append", default=[], metavar="FIELD=VALUE", help=only)
        if name == "export":
            verb.add_argument("--format", choices=list(FORMATS), default="csv", help="kind of file (default: csv)")
            verb.add_argument("--out", type=Path, help="file to write (default: print it)")
            verb.set_defaults(run=_export)
        elif name == "compare":
            verb.add_argument("model", help="name of the model")
            base = "version that the others are compared with (default: the one with most requests)"
            verb.add_argument("--base", default="", metavar="VERSION", help=base)
            verb.add_argument("--json", action="store_true", help="print JSON")
            verb.set_defaults(run=_compare)
        else:
            by = "field to count by, or minute, hour or day (default: label)"
            verb.add_argument("--by", choices=list(dict.fromkeys([*_STEPS, *COUNTED])), default="label", help=by)
            verb.set_defaults(run=_stats)


def _asked(chosen: argparse.Namespace) -> tuple[History, Filter]:
    if not chosen.folder.is_dir():
        raise SetupError(f"{chosen.folder} is no folder; name the one that the server was given with --history")
    pairs = [text.partition("=") for text in chosen.only]
    try:
        return History(chosen.folder), filter_of({name: value for name, _, value in pairs})
    except RequestError as error:
        raise SetupError(f"--only: {error.detail}") from None


def _export(chosen: argparse.Namespace) -> int:
    history, wanted = _asked(chosen)
    parts = history.export(wanted, chosen.format)
    if chosen.out is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.flush()
        return 0
    with chosen.out.open("wb") as file:
        for part in parts:
            file.write(part)
    return 0


def _compare(chosen: argparse.Namespace) -> int:
    chosen.only.append(f"model={chosen.model}")
    history, wanted = _asked(chosen)
    sides = history.sides(wanted)
    if not sides or (chosen.base and chosen.base not in sides):
        known = f"it has {', '.join(sides)}" if sides else "it has none"
        raise SetupError(
            f"the history has nothing of {chosen.model} {chosen.base}".rstrip() + f"; of its versions {known}"
        )
    base = chosen.base or max(sides, key=lambda version: sides[version].due)
    found = beside(base, sides, sides[base])
    if chosen.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show_versions(found)
    return 0


def _stats(chosen: argparse.Namespace) -> int:
    history, wanted = _asked(chosen)
    if chosen.by in _STEPS and wanted.is_of(ROLLED_UP):
        return _over_time(history, wanted, chosen.by)
    if chosen.by in ("minute", "hour"):
        names = ", ".join(ROLLED_UP)
        raise SetupError(f"counts by {chosen.by} can be had by {names} alone, besides since and until")
    try:
        counts = history.counts(wanted, chosen.by)
    except RequestError as error:
        raise SetupError(error.detail) from None
    if not counts:
        print(f"there is no request in {chosen.folder}" + (" that fits --only" if chosen.only else ""), file=sys.stderr)
        return 0
    total = sum(count for _, count in counts)
    print(f"{'requests':>10}  {'share':>6}  {chosen.by}")
    for name, count in counts:
        print(f"{count:10}  {count / total:6.1%}  {name or '(none)'}")
    return 0


def _over_time(history: History, wanted: Filter, by: str) -> int:
    until = wall() if wanted.until is None else wanted.until
    since = until - _LONGEST[by] if wanted.since is None else wanted.since
    print(f"{'UTC':16} {'requests':>10} {'in time':>8} {'full':>10} {'failed':>8} {'mean ms':>9}")
    for row in history.minutes(wanted, since, until, _STEPS[by]):
        at = time.strftime("%Y-%m-%d" if by == "day" else "%Y-%m-%d %H:%M", time.gmtime(row["at"]))
        in_time = row["in_time"] / row["count"]
        print(f"{at:16} {row['count']:10} {in_time:8.1%} {row['full']:10} {row['failed']:8} {row['mean_ms']:9.1f}")
    return 0
