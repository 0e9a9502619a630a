"""`timebound serve`: flags to configuration to a running server."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from timebound.config import Config, default_of, describe, options, resolve, shown_default
from timebound.errors import SetupError
from timebound.log import set_up_logging
from timebound.target import check_target

_EXAMPLES = """\
examples:
  timebound serve app.py --port 9000           the model classes of a Python file
  timebound serve model.onnx --deadline 250ms  a model file; also .pt2 (torch.export) and .pt (TorchScript)
  timebound serve examples/insects             a folder with an app.py in it
  timebound serve models/ --host 0.0.0.0       a folder of models, reachable from other machines
  timebound serve app.py --print-config        every option, its value and where it came from

Every option can also be set as TIMEBOUND_<OPTION> in the environment or in .env, or as a line
of timebound.toml in the working directory. A flag beats the environment beats .env beats the file,
and that beats a timebound.toml in the folder that is served.
"""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = verbs.add_parser(
        "serve",
        help="serve a Python file, a model file or a folder of models",
        description="Serve models over HTTP; every request is answered before its deadline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", type=Path, help="a .py file with timebound.Model classes, an .onnx, .pt2 or .pt file, or a folder"
    )
    add_options(parser)
    add_print_config(parser)
    parser.set_defaults(run=lambda chosen: run(chosen.target, chosen))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option of the configuration."""
    for option in options():
        flag = "--" + option.name.replace("_", "-")
        meaning = f"{option.metadata['help']} (default: {shown_default(option)})"
        if isinstance(default_of(option), bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        else:
            parser.add_argument(flag, default=None, metavar="VALUE", help=meaning)


def add_print_config(parser: argparse.ArgumentParser) -> None:
    """Add the flag that shows the configuration in place of serving."""
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="show the value of each option and where it was set, and do not serve",
    )


def run(target: Path, chosen: argparse.Namespace) -> int:
    """Serve `target` with the options chosen."""
    config = configuration(chosen, target if target.is_dir() else None)
    if chosen.print_config:
        print(describe(config))
        return 0
    check_target(target)
    return start(target, config)


def configuration(chosen: argparse.Namespace, served: Path | None = None) -> Config:
    """The configuration from flags, environment and files."""
    flags = {option.name: getattr(chosen, option.name) for option in options()}
    return resolve(flags, os.environ, Path.cwd(), served)


def start(target: Path, config: Config) -> int:
    """Set logging up and run the server."""
    # Imported late: --help and mistakes in the options answer without the web server's import time.
    from timebound.gateway import logs_json
    from timebound.server import run as run_server

    set_up_logging("debug" if config.debug else config.log_level, as_json=logs_json(config), is_threaded=True)
    try:
        return run_server(target, config)
    except SetupError as error:
        if config.debug:
            raise SystemExit(_with_trace(error)) from error
        raise


def _with_trace(error: SetupError) -> int:
    import traceback

    traceback.print_exception(error)
    return 2
