"""`timebound doctor`: what would keep a server from answering in time here, and what cures it."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from timebound.app_settings import hand_on
from timebound.cli.serve import add_options, flags_of
from timebound.cli.values import read_time
from timebound.cli.verb import add_set, declare
from timebound.clock import MonotonicClock
from timebound.doctor.doctor import Patient, examine
from timebound.doctor.finding import as_lines, has_problems


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "doctor",
        "check machine, settings, port, store and models before serving",
        "Check what a server needs. Each check prints a line: ok, warning or problem, and what to do.",
    )
    target = "what to check, as for `timebound serve`; without it no model is checked"
    parser.add_argument("target", type=Path, nargs="?", help=target)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of lines")
    trial = "how long the trial run of the models may take (default: 120)"
    parser.add_argument("--timeout", type=read_time, default=120.0, metavar="TIME", help=trial)
    add_set(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Show every finding; the exit code says whether any is a problem."""
    hand_on(chosen.set)
    # What parts log of their troubles is told by the findings.
    logging.getLogger("timebound").addHandler(logging.NullHandler())
    patient = Patient(chosen.target, flags_of(chosen), os.environ, Path.cwd(), chosen.timeout)
    findings = list(examine(patient, MonotonicClock()))
    is_sick = has_problems(findings)
    if chosen.json:
        print(msgspec.json.format(msgspec.json.encode({"ok": not is_sick, "findings": findings})).decode())
    else:
        print("\n".join(as_lines(findings)))
    return 1 if is_sick else 0
