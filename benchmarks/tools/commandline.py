"""What the benchmark scripts share on the command line: options, progress, and an orderly end."""

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.tools.processes import StartError
from benchmarks.tools.workload import default_folder

T = TypeVar("T")

NEEDED = ("fastapi", "onnx")
"""What benchmarks need besides the core install: to compare with, and to build networks."""


class Failed(Exception):
    """The benchmark could not be finished; carries the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(text: str) -> None:
    """Progress, for a person who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def names(allowed: Sequence[str], text: str) -> list[str]:
    """Read a list like "bare,fastapi", kept in our order."""
    chosen = text.split(",")
    unknown = set(chosen) - set(allowed)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is none of {', '.join(allowed)}")
    return [name for name in allowed if name in chosen]


def options_parser(description: str | None, examples: str) -> argparse.ArgumentParser:
    """A parser with the options that every script has."""
    parser = argparse.ArgumentParser(
        description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="under a minute on two cores; coarser figures, and fewer bars judged"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat JSON object")
    parser.add_argument(
        "--models",
        type=Path,
        default=default_folder(),
        metavar="FOLDER",
        help="built if missing; default: %(default)s",
    )
    parser.add_argument(
        "--serve-args",
        type=shlex.split,
        default=[],
        metavar="TEXT",
        help="more arguments for `timebound serve`",
    )
    return parser


def add_choice(parser: argparse.ArgumentParser, flag: str, allowed: Sequence[str], what: str) -> None:
    """A flag that takes some of a few names; all of them if it is not given.

    If it is, and leaves one out, the options are told so: `is_partial`.
    """
    parser.set_defaults(is_partial=False)
    parser.add_argument(
        flag,
        action=_Choice,
        allowed=allowed,
        type=lambda text: names(allowed, text),
        default=list(allowed),
        metavar="NAMES",
        help=f"{what}, of {','.join(allowed)}; default: all",
    )


class _Choice(argparse.Action):
    """Takes names, and notes whether some of those there are were left out."""

    def __init__(self, *arguments: Any, allowed: Sequence[str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._count = len(allowed)

    def __call__(self, parser: object, options: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        setattr(options, self.dest, values)
        options.is_partial |= len(values) < self._count


def finish(program: str, measure: Callable[[], T]) -> T:
    """Run the measurement; what can go wrong is told in a sentence and ends in `Failed`. Servers are stopped."""
    # Unwind on SIGTERM as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        cure = "pip install -r requirements/dev.txt"
        print(f"{program}: not installed: {', '.join(missing)}; {cure}", file=sys.stderr)
        raise Failed(1)
    try:
        return measure()
    except StartError as failure:
        print(f"{program}: {failure}", file=sys.stderr)
    except subprocess.CalledProcessError as failure:
        print(f"{program}: {shlex.join(failure.cmd)} ended with exit code {failure.returncode}", file=sys.stderr)
    except TimeoutError:
        print(f"{program}: a server stopped answering; the last progress line names it", file=sys.stderr)
    except KeyboardInterrupt:
        raise Failed(130) from None
    raise Failed(1)
