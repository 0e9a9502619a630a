"""Reads the command line and runs its verb: one place for errors and exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from timebound.cli.first import leave
from timebound.cli.verb import examples_of
from timebound.errors import NeedsProgram, RequestError, SetupError

# By verb, the file that declares it. Only the file of the verb that is called is imported: each needs other things.
_FILES = {
    "serve": "serve",
    "demo": "serve",
    "up": "up",
    "torchserve": "torchserve",
    "new": "new",
    "pack": "pack",
    "doctor": "doctor",
    "convert": "convert",
    "reload": "control",
    "traffic": "control",
    "rollback": "control",
    "live": "live",
    "history": "history",
    "drift": "drift",
    "results": "results",
    "keys": "keys",
    "bench": "bench",
    "tune": "tune",
    "plan": "plan",
}

_WRONG_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")


class _ShowVersion(argparse.Action):
    """What is installed is looked up only when somebody asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(import_module("timebound.cli.installed").installed(), end="")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and says what a mistyped flag or command may have been."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unknown flags are found where the verb's own flags are known, so that the nearest can be named."""
        chosen, unknown = super().parse_known_args(args, namespace)
        names = {flag.lstrip("-"): flag for action in self._actions for flag in action.option_strings}
        for word in unknown:
            near = difflib.get_close_matches(word.lstrip("-").partition("=")[0], names, n=1)
            if word.startswith("--"):
                self.error(f"unknown option {word}" + (f"; did you mean {names[near[0]]}?" if near else ""))
        return chosen, unknown

    def error(self, message: str) -> NoReturn:
        if match := _WRONG_CHOICE.search(message):
            near = difflib.get_close_matches(match[1], re.findall(r"[\w.-]+", match[2]), n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        if "invalid choice" in message and any(end in message for end in (".py'", ".onnx'", "/'")):
            message += "; to serve a file or folder: timebound serve PATH"
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def make_parser(verb: str = "") -> argparse.ArgumentParser:
    """The parser of the command, with this verb or, if there is none of that name, with all."""
    parser = _Parser(
        prog="timebound",
        description="The model server that is never late.",
        epilog=examples_of("timebound"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", nargs=0, action=_ShowVersion, help="show version, Python and extras, and exit")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for file in [_FILES[verb]] if verb in _FILES else dict.fromkeys(_FILES.values()):
        import_module(f"timebound.cli.{file}").add_to(verbs)
    return parser


def run(arguments: Sequence[str] | None) -> int:
    """Run the verb; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = make_parser(*given[:1])
    chosen = parser.parse_args(given)
    if not hasattr(chosen, "run"):
        parser.print_help()
        return 2
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, leave) and not getattr(chosen, "takes_signals", False):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there may be something to clean up
    try:
        code = int(chosen.run(chosen))
        sys.stdout.flush()  # here, where a closed pipe is understood, not when the interpreter ends
        return code
    except SetupError as error:
        if getattr(chosen, "debug", None):
            traceback.print_exc()
        print(f"timebound: {error}", file=sys.stderr)
        if isinstance(error, NeedsProgram):
            print(f"\n{error.program}" if sys.stdout.isatty() else error.program, end="")
        return 2
    except RequestError as error:  # what was asked of a running server
        print(f"timebound: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        print(
            f"timebound: too many files are open; this process may have {most}. Raise its limit: "
            "ulimit -n 8192 in a shell, LimitNOFILE= in systemd, --ulimit nofile= in docker",
            file=sys.stderr,
        )
        return 2
