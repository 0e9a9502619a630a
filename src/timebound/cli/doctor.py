"""`timebound doctor`: what would keep a server from answering in time here, and what cures it."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from timebound.cli.serve import add_options
from timebound.cli.values import read_time
from timebound.clock import MonotonicClock
from timebound.config import options

_EXAMPLES = """\
examples:
  timebound doctor                             this machine, and the settings found here
  timebound doctor app.py                      a model too: loaded and run on its example in a process of its own
  timebound doctor app.py --port 9000 --deadline 250ms
  timebound doctor --store redis://:password@10.0.0.5:6379/0
  timebound doctor app.py --json | jq '.findings[] | select(.state != "ok")'

Takes the options of `timebound serve`. Options that are not given are read where the server reads them.
Exit code: 0 no problem (there may be warnings), 1 problems, 2 a flag that does not exist.
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = verbs.add_parser(
        "doctor",
        help="check machine, settings, port, store and models before serving",
        description="Check what a server needs. Each check prints a line: ok, warning or problem, and what to do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", type=Path, nargs="?", help="what to check, as for `timebound serve`; without it no model is checked"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of lines")
    parser.add_argument(
        "--timeout",
        type=read_time,
        default=120.0,
        metavar="TIME",
        help="how long the trial run of the models may take (default: 120)",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Show every finding; the exit code says whether any is a problem."""
    import msgspec

    from timebound.doctor.doctor import Patient, examine
    from timebound.doctor.finding import as_lines, has_problems

    # What parts log of their troubles is told by the findings.
    logging.getLogger("timebound").addHandler(logging.NullHandler())
    flags = {option.name: getattr(chosen, option.name) for option in options()}
    patient = Patient(chosen.target, flags, os.environ, Path.cwd(), chosen.timeout)
    findings = list(examine(patient, MonotonicClock()))
    is_sick = has_problems(findings)
    if chosen.json:
        print(msgspec.json.format(msgspec.json.encode({"ok": not is_sick, "findings": findings})).decode())
    else:
        print("\n".join(as_lines(findings)))
    return 1 if is_sick else 0
