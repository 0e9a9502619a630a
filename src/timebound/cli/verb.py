"""What all verbs have in common: how one is declared, and what its flags come to.

The examples at the end of a verb's help lie in `examples/<verb>.txt`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timebound.config import Config, resolve
from timebound.errors import SetupError
from timebound.target import home_of

_SET = "a setting of the app itself, which its code reads as self.settings.NAME; may be given several times"


def declare(verbs: Any, name: str, meaning: str, description: str = "", examples: str = "") -> argparse.ArgumentParser:
    """Add a verb: `meaning` is for the list of all, `description` for its own help; `examples` if another has them."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=meaning,
        description=description or meaning[0].upper() + meaning[1:] + ".",
        epilog=examples_of(examples or name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_set(parser: argparse.ArgumentParser) -> None:
    """Declare `--set`."""
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=_SET)


def examples_of(verb: str) -> str | None:
    """What ends a verb's help; None if it has no examples."""
    file = Path(__file__).parent / "examples" / f"{verb}.txt"
    return file.read_text() if file.is_file() else None


def configuration(flags: Mapping[str, Any], target: Path | None = None, app: Sequence[str] = ()) -> Config:
    """What a server of this target, started here with these flags, would find in environment and files too."""
    return resolve(flags, os.environ, Path.cwd(), None if target is None else home_of(target), app=app)


def profiles_of(target: Path) -> Path | None:
    """The folder in which a server started here keeps what it learned; None if it keeps nothing."""
    folder = configuration({}, target).profiles
    return None if folder == "none" else Path(folder).expanduser()


def check_writable(file: Path) -> None:
    """Raise `SetupError` if a result could not be written there; better before the work than after it."""
    if not file.parent.is_dir():
        raise SetupError(f"cannot write {file}: there is no folder {file.parent}")
