"""The `timebound` command: one file per verb, one place for errors and exit codes."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from timebound import __version__
from timebound.cli import demo, serve
from timebound.errors import SetupError

_EXAMPLES = """\
examples:
  timebound demo                     a model to play with, on http://127.0.0.1:8000
  timebound serve app.py             serve the model classes of a Python file
  timebound serve model.onnx         serve a model file; its signature is read from it
  timebound serve models/            serve a folder: <model>/<version>/model.onnx or app.py
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 2 a mistake to mend (one sentence on stderr), 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="timebound",
        description="The model server that is never late.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"timebound {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in (serve, demo):
        verb.add_to(verbs)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except SetupError as error:
        if getattr(chosen, "debug", None):
            traceback.print_exc()
        print(f"timebound: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
