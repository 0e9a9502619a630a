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
from timebound.cli import bench, control, convert, demo, doctor, keys, new, plan, results, serve, tune
from timebound.errors import RequestError, SetupError

_EXAMPLES = """\
examples:
  timebound demo                     a model to play with, on http://127.0.0.1:8000
  timebound new hello                an application to begin with: timebound serve hello
  timebound serve app.py             serve the model classes of a Python file
  timebound serve model.onnx         serve a model file; its signature is read from it
  timebound serve model.pt2          serve a file of torch.export
  timebound serve models/            serve a folder: <model>/<version>/model.onnx or app.py
  timebound convert net.pt2 net.onnx turn a torch network into ONNX, and check that it answers the same
  timebound doctor app.py            check machine, settings, port, store and model before serving
  timebound results ls               list the results that a running server keeps by key
  timebound bench app.py --rate 50   how much of 50 requests/s is answered in time
  timebound tune app.py              find the settings that answer most in time on this machine
  timebound plan app.py --rate 500 --deadline 1s   machines needed, and their price
  timebound keys new shop            make an API key for `serve --keys FILE`
  timebound reload                   load code and models of a running server again
"""


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
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"timebound {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for verb in (serve, demo, new, doctor, convert, control, results, keys, bench, tune, plan):
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
