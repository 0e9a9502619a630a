"""`timebound demo`: serve the model that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timebound.cli.serve import add_options, add_print_config, run
from timebound.cli.verb import declare

APP = Path(__file__).parent.parent / "demo" / "app.py"


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "demo",
        "serve a small handwriting model to play with",
        "Serve three small networks that read a handwritten Chinese character. Draw 勇 on the page.",
    )
    add_options(parser)
    add_print_config(parser)
    parser.set_defaults(run=lambda chosen: run(APP, chosen))
