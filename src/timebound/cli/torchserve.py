"""`timebound torchserve`: started as TorchServe and MMS are, with their flags and their config.properties."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timebound import __version__
from timebound.cli.serve import add_options, flags_of
from timebound.cli.verb import configuration, declare
from timebound.errors import SetupError
from timebound.handlers.properties import Properties, read_properties
from timebound.handlers.registry import first_list
from timebound.log import set_up_logging

log = logging.getLogger("timebound.server")

_INFERENCE, _MANAGEMENT, _METRICS = "127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082"
_SWITCHES = ("enable_model_api", "no_config_snapshots")
_MEANINGS: Mapping[str, str] = {
    "no_config_snapshots": "no snapshots are kept",
    "enable_model_api": "the management is always there, for the operator",
    "log_config": "set --log-format and --log-level",
    "cpp_log_config": "handlers in C++ are not supported",
    "workflow_store": "workflows are not supported",
    "plugins_path": "plugins are not supported",
}
_STOP_S = 60.0


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "torchserve",
        "serve model archives, started as TorchServe and MMS are",
        "Serve model archives (.mar) with the flags and the config.properties of TorchServe and MMS. Listens on port "
        "8080, for the management on 8081 and for metrics on 8082, unless the properties or --port say otherwise.",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--start", action="store_true", help="start; in the background unless --foreground is given")
    action.add_argument("--stop", action="store_true", help="stop the server that was started in the background")
    action.add_argument("-v", "--version", action="store_true", help="show the version")
    parser.add_argument("--foreground", action="store_true", help="stay in the foreground")
    parser.add_argument("--model-store", type=Path, metavar="FOLDER", help="the folder that the archives are in")
    models = "archives of the model store, as [NAME=]FILE, or all; without any, what the properties say"
    parser.add_argument("--models", nargs="+", default=[], metavar="MODEL", help=models)
    parser.add_argument("--ts-config", "--mms-config", type=Path, metavar="FILE", help="config.properties to read")
    token = "the management answers everybody at its address, which must be a loopback one, without --admin-token"
    parser.add_argument("--disable-token-auth", "--dt", action="store_true", help=token)
    for name, why in _MEANINGS.items():
        flags = ["--" + name.replace("_", "-"), *(["--ncs"] if name == "no_config_snapshots" else [])]
        kind: dict[str, Any] = {"action": "store_true"} if name in _SWITCHES else {"metavar": "VALUE"}
        parser.add_argument(*flags, help=f"taken and ignored: {why}", **kind)
    add_options(parser)
    parser.set_defaults(run=run, takes_signals=True)


def run(chosen: argparse.Namespace) -> int:
    """Start, or stop, or say the version."""
    if chosen.version:
        print(f"timebound {__version__}, serving model archives of TorchServe and MMS")
        return 0
    if chosen.stop:
        return _stop()
    if chosen.start and not chosen.foreground:
        return _start_behind()
    return _serve(chosen)


def _serve(chosen: argparse.Namespace) -> int:
    told = _properties(chosen)
    flags = _flags(chosen, told)
    config = configuration(flags)
    chosen.debug = config.debug
    # Imported late: --help and mistakes in the options answer without the web server's import time.
    from timebound.server import run as run_server

    set_up_logging(config.least_logged, as_json=config.logs_json, is_threaded=True)
    for ignored in _ignored(chosen, told):
        log.warning("%s", ignored)
    if not told.decodes:
        os.environ["TS_DECODE_INPUT_REQUEST"] = "false"
    store = chosen.model_store or (Path(told.store) if told.store else None)
    if store is None:
        raise SetupError("there is no model store; give the folder that the archives are in with --model-store")
    wanted = chosen.models or ([] if told.load in (None, "none", "") else str(told.load).split(","))
    with tempfile.TemporaryDirectory(prefix="timebound-torchserve-") as folder:
        target = first_list(Path(folder), store, wanted, told.models, told.usual_timeout)
        return run_server(target, config, _say_started)


def _say_started() -> None:
    """In one write: the log comes out of another thread, and scripts wait for this line."""
    sys.stdout.write("Model server started.\n")
    sys.stdout.flush()


def _properties(chosen: argparse.Namespace) -> Properties:
    named = os.environ.get("TS_CONFIG_FILE") or os.environ.get("MMS_CONFIG_FILE")
    file = Path(named) if named else chosen.ts_config
    return Properties() if file is None else read_properties(file, os.environ)


def _flags(chosen: argparse.Namespace, told: Properties) -> dict[str, Any]:
    """The options: flags go before the properties, those before the defaults of TorchServe."""
    flags = {**told.options, **{name: value for name, value in flags_of(chosen).items() if value is not None}}
    host, _, port = (told.inference or _INFERENCE).rpartition(":")
    has_own_port = "port" in flags
    flags.setdefault("host", host.strip("[]"))
    flags.setdefault("port", port)
    management = told.management or (None if has_own_port else _MANAGEMENT)
    others = [told.metrics or (None if has_own_port else _METRICS)]
    if (chosen.disable_token_auth or told.is_open) and management is not None:
        flags.setdefault("operator_at", management)
    else:
        others.append(management)
    taken = {f"{flags['host']}:{flags['port']}", flags.get("operator_at")}
    further = [each for each in dict.fromkeys(others) if each is not None and each not in taken]
    if further:
        flags.setdefault("also_at", ",".join(further))
    return flags


def _ignored(chosen: argparse.Namespace, told: Properties) -> Sequence[str]:
    """One sentence for each flag and property that means nothing here."""
    flags = [name for name in _MEANINGS if getattr(chosen, name)]
    sentences = [f"--{name.replace('_', '-')} is ignored: {_MEANINGS[name]}" for name in flags]
    return [*sentences, *(f"the property {name} is ignored" for name in told.ignored)]


# ---------------------------------------------------------------------- in the background


def _pid_file() -> Path:
    return Path(tempfile.gettempdir()) / f".timebound-torchserve-{os.getuid()}.pid"


def _running() -> int | None:
    """The process that was started in the background, if it is there."""
    file = _pid_file()
    try:
        pid = int(file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    is_ours = file.stat().st_uid == os.getuid() and b"torchserve" in command.split(b"\0")
    return pid if is_ours else None


def _start_behind() -> int:
    if (pid := _running()) is not None:
        raise SetupError(f"it runs already, as process {pid}; stop it with: timebound torchserve --stop")
    words = [word for word in sys.argv[1:] if word != "--start"]
    command = [sys.executable, "-m", "timebound.cli", *words, "--foreground"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    scratch = _pid_file().with_suffix(f".{os.getpid()}")
    scratch.write_text(str(process.pid))
    scratch.replace(_pid_file())
    return 0


def _stop() -> int:
    pid = _running()
    if pid is None:
        print("TorchServe is not currently running.")
        return 0
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
    _pid_file().unlink(missing_ok=True)
    print("TorchServe has stopped.")
    return 0
