"""Puts fronts around a gateway, and starts and stops them in order; on no request's way."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import uvloop

from timebound.config import Config
from timebound.errors import SetupError
from timebound.gateway import Gateway
from timebound.http.front import HttpFront
from timebound.observe.access import AccessLog
from timebound.observe.life import log_life, warn_if_slow
from timebound.observe.metrics import Metrics

log = logging.getLogger("timebound.server")


class Front(Protocol):
    """A way in to a gateway: a port and what is spoken there."""

    address: str

    def bind(self) -> None: ...
    async def open(self) -> None: ...
    def stop_accepting(self) -> None: ...
    async def close(self, patience_s: float) -> None: ...
    def read_again(self) -> None: ...
    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]: ...


FRONTS: tuple[Callable[..., Front | None], ...] = (HttpFront,)
"""Every way in, the main one first. Each gets the gateway and the options; None says that it is not wanted."""


class Server:
    """One gateway and its fronts. `start` returns when the first model answered its warm-up run."""

    def __init__(self, target: Path, config: Config) -> None:
        self._config = config
        gateway = self.gateway = Gateway(target, config)
        self.metrics = Metrics(gateway.events, gateway.gauges(), gateway.supervisor.memory)
        self._access_log = AccessLog(gateway.events) if config.access_log else None
        log_life(gateway.events)
        gateway.catalogue.listen(warn_if_slow, lambda name, successor: None)
        made = [make(gateway, config, reload=self.reload, metrics=self.metrics.render) for make in FRONTS]
        self.fronts = [front for front in made if front is not None]
        for front in self.fronts:
            self.metrics.gauges |= front.gauges()

    @property
    def address(self) -> str:
        """Where the main front listens."""
        return self.fronts[0].address

    async def start(self) -> None:
        """Listen, and have the first worker up; raises `SetupError` if either cannot be."""
        for front in self.fronts:
            front.bind()
        if self._access_log is not None:
            self._access_log.start()
        # Probes are answered while models load: live, not ready.
        for front in self.fronts:
            await front.open()
            log.debug("listening", extra={"at": front.address})
        try:
            await self.gateway.start()
        except BaseException:
            await self._close(0)
            raise
        _quiet_collector()

    async def stop(self) -> None:
        """Leave in order; every accepted request is answered if the grace time allows."""
        # Nobody new: readiness turns false, requests on open connections are refused, then the ports close.
        self.gateway.close()
        for front in self.fronts:
            front.stop_accepting()
        # What was accepted is answered; its workers must still be there for that.
        await self.gateway.drain()
        # Answers are written out before the processes that made them go.
        await self._close(min(1.0, self._config.grace))
        await self.gateway.stop()
        if self._access_log is not None:
            self._access_log.stop()

    async def _close(self, patience_s: float) -> None:
        await asyncio.gather(*(front.close(patience_s) for front in self.fronts))

    async def reload(self) -> list[str]:
        """Load the target and the keys again and switch to them; the models served now. Raises `SetupError`."""
        for front in self.fronts:
            front.read_again()
        return await self.gateway.reload()

    def reload_soon(self) -> None:
        """The same for a signal, which waits for nothing; a failure is logged."""

        async def reload() -> None:
            try:
                await self.reload()
            except SetupError as error:
                log.error("%s", error)

        self._errand = asyncio.create_task(reload())

    def kill(self) -> None:
        """Leave without a word: end the workers; the caller exits the process."""
        self.gateway.kill()


def _quiet_collector() -> None:
    """Keep the garbage collector from pausing the event loop: a full pass takes longer than a margin.

    What is loaded by now stays, so it need not be looked at again; requests and connections leave no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


async def serve(target: Path, config: Config) -> int:
    """Run a server until a signal ends it; the exit code. A second signal leaves at once."""
    stopping = asyncio.Event()
    server = Server(target, config)

    def on_signal() -> None:
        if stopping.is_set():
            server.kill()
            os._exit(130)
        log.info("stopping; again to leave at once")
        stopping.set()

    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would have us lose our workers' ends
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, server.reload_soon)
    starting = asyncio.create_task(server.start())
    stop_asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()  # raises SetupError if it could not start
        for info in server.gateway.catalogue.models.values():
            log.info("ready", extra={"model": info.name, "at": server.address + info.paths[0]})
        log.info("open the page", extra={"at": server.address + "/"})
        await stop_asked
    else:
        starting.cancel()
    await server.stop()
    # Whoever asks again now asks for what is under way. The closing loop would give the signals back their default,
    # which ends the process; a mask would not do, as it holds for this thread alone.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    log.info("stopped")
    return 0


def run(target: Path, config: Config) -> int:
    """Run a server in its own event loop."""
    return uvloop.run(serve(target, config))
