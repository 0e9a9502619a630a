"""`timebound serve` and `timebound demo`: flags to configuration to a running server."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from timebound.app_settings import forget_handed
from timebound.cli.verb import add_set, configuration, declare
from timebound.config import default_of, describe, options, shown_default
from timebound.log import set_up_logging
from timebound.machine.cores import cores
from timebound.target import check_target, together
from timebound.workers.early import start_early

_DEMO = Path(__file__).parent.parent / "demo" / "app.py"


def add_to(verbs: Any) -> None:
    """Declare the verbs and their flags."""
    serve = declare(
        verbs,
        "serve",
        "serve a Python file, a model file or a folder of models",
        "Serve models over HTTP; every request is answered before its deadline.",
    )
    what = "a .py file with timebound.Model classes or a typed function, an .onnx, .pt2, .pt or .mar file, or a folder"
    one = "app.py:NAME serves one class or function; give several targets to serve them together"
    serve.add_argument("target", type=Path, nargs="+", help=f"{what}; {one}")
    demo = declare(
        verbs,
        "demo",
        "serve a small handwriting model to play with",
        "Serve three small networks that read a handwritten Chinese character. Draw 勇 on the page.",
    )
    demo.set_defaults(target=[_DEMO])
    for verb in (serve, demo):
        add_options(verb)
        shown = "show the value of each option and where it was set, and do not serve"
        verb.add_argument("--print-config", action="store_true", help=shown)
        add_set(verb)
        verb.set_defaults(run=run, takes_signals=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option of the configuration."""
    for option in options():
        flag = "--" + option.name.replace("_", "-")
        meaning = f"{option.metadata['help']} (default: {shown_default(option)})"
        if isinstance(default_of(option), bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        else:
            parser.add_argument(flag, default=None, metavar="VALUE", help=meaning)


def flags_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """What was given for each option of the configuration; None where nothing was."""
    return {option.name: getattr(chosen, option.name) for option in options()}


def run(chosen: argparse.Namespace) -> int:
    """Serve the target with the options chosen."""
    # Until the server listens for it a reload is needless: everything is yet to be read. SIG_IGN would be inherited.
    signal.signal(signal.SIGHUP, lambda *_: None)
    target, *more = chosen.target
    config = configuration(flags_of(chosen), None if more else target, chosen.set)
    forget_handed()
    target = together(chosen.target)
    if chosen.print_config:
        print(describe(config))
        return 0
    check_target(target)
    chosen.debug = config.debug  # wherever it was set, mistakes are shown with their traceback
    early = start_early(config.workers, config.slots, config.threads, config.device, cores())
    try:
        # Imported late: --help and mistakes in the options answer without the web server's import time.
        from timebound.server import run as run_server

        set_up_logging(config.least_logged, as_json=config.logs_json, is_threaded=True)
        return run_server(target, config, early=early)
    finally:
        if early is not None:
            early.end()
