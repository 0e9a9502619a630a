"""The `timebound` command: one file per verb, one place for errors and exit codes."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from timebound import __version__
from timebound.cli import bench, control, convert, doctor, keys, new, plan, results, serve, tune
from timebound.cli.verb import examples_of
from timebound.errors import RequestError, SetupError


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and says what a mistyped flag or command may have been."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unknown flags are found where the verb's own flags are known, so that the nearest can be named."""
        chosen, unknown = super().parse_known_args(args, namespace)
        flags = [flag for action in self._actions for flag in action.option_strings]
        for word in unknown:
            near = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
            if word.startswith("--") and near:
                self.error(f"unknown option {word}; did you mean {near[0]}?")
        return chosen, unknown

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and any(end in message for end in (".py'", ".onnx'", "/'")):
            message += "; to serve a file or folder: timebound serve PATH"
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command, with all its verbs."""
    parser = _Parser(
        prog="timebound",
        description="The model server that is never late.",
        epilog=examples_of("timebound"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"timebound {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for verb in (serve, new, doctor, convert, control, results, keys, bench, tune, plan):
        verb.add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 1 nothing found, 2 a mistake to mend (one sentence on stderr), 130 interrupted."""
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    if not hasattr(chosen, "run"):
        parser.print_help()
        return 2
    try:
        code = int(chosen.run(chosen))
        sys.stdout.flush()  # here, where a closed pipe is understood, not when the interpreter ends
        return code
    except SetupError as error:
        if getattr(chosen, "debug", None):
            traceback.print_exc()
        print(f"timebound: {error}", file=sys.stderr)
        return 2
    except RequestError as error:  # what was asked of a running server
        print(f"timebound: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
