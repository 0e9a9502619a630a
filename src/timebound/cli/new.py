"""`timebound new`: an application to begin with, which runs at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from timebound.cli.verb import declare
from timebound.scaffold.scaffold import TEMPLATES, write_application


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "new",
        "write an application to begin with",
        "Write a folder with an application, its test and its options. Nothing is overwritten.",
    )
    templates = "".join(f"  {name:8} {meaning}\n" for name, meaning in TEMPLATES.items())
    parser.epilog = f"{parser.epilog}{templates}"
    parser.add_argument("folder", metavar="NAME", type=Path, help="the folder to make; its name is the model's")
    kind = "kind of application to write, from the list below (default: plain)"
    parser.add_argument("--template", default="plain", choices=list(TEMPLATES), help=kind)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    for file in write_application(chosen.folder, chosen.template):
        print(f"wrote {file}")
    print(f"next: timebound serve {chosen.folder}")
    return 0
