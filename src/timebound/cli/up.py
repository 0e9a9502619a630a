"""`timebound up`: several servers behind nginx with one Redis, on this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timebound.cli.serve import add_options, flags_of
from timebound.cli.values import read_whole
from timebound.cli.verb import add_set, configuration, declare
from timebound.errors import SetupError
from timebound.log import set_up_logging
from timebound.target import check_target

if TYPE_CHECKING:
    from timebound.stack.stack import Stack

log = logging.getLogger("timebound.stack")

_OURS = ("host", "port", "store", "trusted_proxies")
"""Options that the stack gives its servers itself."""


def add_to(verbs: Any) -> None:
    """Declare the verb and its flags."""
    parser = declare(
        verbs,
        "up",
        "start nginx, Redis and several servers on this machine, and stop them together",
        "Start Redis, several servers of one target and nginx in front of them, and stop them together. "
        "Needs nginx and redis-server on this machine, and no containers. "
        "The signal TTIN starts one server more, TTOU stops one; HUP has all of them load the target again.",
    )
    parser.add_argument("target", type=Path, help="what to serve, as for `timebound serve`")
    servers = "how many servers; they listen on the ports after --port (default: %(default)s)"
    parser.add_argument("--replicas", type=read_whole, default=2, metavar="N", help=servers)
    add_set(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the stack until a signal ends it."""
    flags = flags_of(chosen)
    config = configuration(flags, chosen.target)
    check_target(chosen.target)
    if config.tls_cert:
        raise SetupError("nginx speaks plain HTTP here; for HTTPS put the certificate into an nginx.conf of your own")
    if config.grpc_port is not None:
        raise SetupError(
            "nginx balances HTTP alone here; for gRPC start `timebound serve` with --grpc-port, and let clients or "
            "a proxy of your own choose among the servers"
        )
    if config.proxy_protocol:
        raise SetupError("nginx tells the servers by headers here whose requests it brings; leave --proxy-protocol out")
    chosen.debug = config.debug
    from timebound.clock import MonotonicClock  # late, as for `serve`: --help answers at once
    from timebound.stack.places import check_places
    from timebound.stack.stack import Plan, Stack

    check_places(config, chosen.replicas)
    set_up_logging(config.least_logged, as_json=config.logs_json, is_threaded=True)
    given = {name: value for name, value in flags.items() if name not in _OURS}
    plan = Plan(
        arguments=[str(chosen.target), *(f"--set={text}" for text in chosen.set), *_as_flags(given)],
        replicas=chosen.replicas,
        config=config,
        store=None if config.store in ("memory", "none") else config.store,
    )
    with tempfile.TemporaryDirectory(prefix="timebound-up-", ignore_cleanup_errors=True) as folder:
        return asyncio.run(_keep_up(Stack(plan, Path(folder), MonotonicClock())))


async def _keep_up(stack: Stack) -> int:
    """Start it, wait for a signal, stop it; a second signal ends it at once."""
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            stack.kill()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, stack.reload)
    starting, stop_asked = asyncio.create_task(stack.start()), asyncio.create_task(stopping.wait())
    changes: set[asyncio.Task[None]] = set()

    def on_change(change: Callable[[], Coroutine[None, None, None]]) -> None:
        if not stopping.is_set():
            task = asyncio.create_task(_change(stack, change))
            changes.add(task)
            task.add_done_callback(changes.discard)

    loop.add_signal_handler(signal.SIGTTIN, on_change, stack.grow)
    loop.add_signal_handler(signal.SIGTTOU, on_change, stack.shrink)
    try:
        await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()  # raises SetupError if a part could not start
            log.info("up", extra={"at": stack.address, "servers": ", ".join(map(str, stack.ports))})
        await stop_asked
        log.info("finishing open requests; Ctrl-C again quits now")
    finally:
        for task in (starting, *changes):
            task.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        await stack.stop()
    log.info("stopped")
    return 0


async def _change(stack: Stack, change: Callable[[], Coroutine[None, None, None]]) -> None:
    """One server more or fewer; if that cannot be, the stack goes on as it is."""
    try:
        await change()
    except SetupError as error:
        log.error("%s", error)
    log.info("servers now", extra={"servers": ", ".join(map(str, stack.ports))})


def _as_flags(given: dict[str, Any]) -> list[str]:
    """The options as they were written on the command line."""
    words: list[str] = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={value}")
    return words
