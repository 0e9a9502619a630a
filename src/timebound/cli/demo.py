"""`timebound demo`: serve the model that comes with the package."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from timebound.cli.serve import add_options, add_print_config, run

APP = Path(__file__).parent.parent / "demo" / "app.py"

_EXAMPLES = """\
examples:
  timebound demo                               open http://127.0.0.1:8000
  timebound demo --port 9000
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = verbs.add_parser(
        "demo",
        help="serve a small handwriting model to play with",
        description="Serve three small networks that read a handwritten Chinese character. Draw 勇 on the page.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    add_print_config(parser)
    parser.set_defaults(run=lambda chosen: run(APP, chosen))
