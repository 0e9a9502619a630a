"""Puts fronts around a gateway, and starts and stops them in order; on no request's way."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import anyio
import uvloop

from timebound.admission import Gate
from timebound.clock import wall
from timebound.config import Config
from timebound.errors import SetupError
from timebound.gateway import Gateway
from timebound.http.front import HttpFront
from timebound.http.history import Kept
from timebound.machine.memory import give_back_memory
from timebound.machine.nvml import open_cards
from timebound.observe.access import AccessLog
from timebound.observe.drift import Drift
from timebound.observe.exports import FORMATS
from timebound.observe.filter import filter_of
from timebound.observe.gpus import GpuNumbers
from timebound.observe.history import History
from timebound.observe.journal import Journal, check_folder
from timebound.observe.life import log_life, warn_if_slow
from timebound.observe.live import Live
from timebound.observe.metrics import Metrics
from timebound.observe.otlp import Collector
from timebound.observe.signals import EVERY_S, Look, Signals
from timebound.observe.stalls import Stalls
from timebound.observe.tally import Tally
from timebound.observe.traces import Traces
from timebound.observe.versions import Versions
from timebound.profile import ProfileFile
from timebound.reading.light import is_heavy_json
from timebound.rpc import rpc_front
from timebound.work_folder import work_folder
from timebound.workers.early import Early

log = logging.getLogger("timebound.server")

CUT_OFF = 3
"""The exit code of a server that had to leave requests unanswered, or answers unread."""

_LAST_WORD_S = 1.0
"""Seconds in which answers may be read even if computing took all of the grace time."""


class Front(Protocol):
    """A way in to a gateway: a port and what is spoken there."""

    address: str

    def bind(self) -> None: ...
    async def open(self) -> None: ...
    def stop_accepting(self) -> None: ...
    async def close(self, patience_s: float) -> int: ...
    def read_again(self) -> None: ...
    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]: ...


class Notes(Protocol):
    """Takes note of requests, in a thread of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


FRONTS: tuple[Callable[..., Front | None], ...] = (HttpFront, rpc_front)
"""Every way in, the main one first. Each gets the gateway, the options and the gate; None: it is not wanted."""


class Server:
    """One gateway and its fronts. `start` returns when the first model answered its warm-up run."""

    def __init__(
        self,
        target: Path,
        config: Config,
        fronts: Sequence[Callable[..., Front | None]] | None = None,
        *,
        cores: int | None = None,
    ) -> None:
        self._config = config
        gateway = self.gateway = Gateway(target, config, cores=cores)
        tally = Tally(gateway.events)
        cards = open_cards(gateway.supervisor.plan.gpus)
        gpus = None if cards is None else GpuNumbers(cards)
        self.metrics = Metrics(
            gateway.events,
            gateway.gauges(),
            gateway.supervisor.usage,
            gateway.catalogue.models,
            gpus,
            tally=tally,
            wall=wall,
        )
        self.signals = Signals(
            gateway.events, lambda now: Look(*gateway.load(now)), is_told=config.logs_json, tally=tally
        )
        self._stalls = Stalls(gateway.clock.now, gateway.loop)
        self.metrics.gauges |= self.signals.gauges() | self._stalls.gauges()
        access_log = None
        if config.access_log:
            models = gateway.catalogue.models
            access_log = AccessLog(gateway.events, keys=config.access_log_keys, models=models)
        log_life(gateway.events)
        gateway.catalogue.listen(warn_if_slow, lambda name, successor: None)
        versions = Versions(gateway.events, lambda: gateway.catalogue.lots, wall)
        drift = _drift(config, gateway, versions)
        self.metrics.show(drift)
        self.live = Live(gateway, self.signals.read, wall, tally=tally, drift=drift, versions=versions, gpus=gpus)
        self.metrics.gauges["live_watchers"] = ("Pages that show the server live.", lambda: len(self.live.stream))
        journal, traces, kept = _journal(config, gateway), _traces(config, gateway), None
        if journal is not None:
            self.metrics.counts |= journal.counts()
            kept = Kept(journal, History(journal.folder), filter_of, FORMATS)
        if traces is not None:
            self.metrics.counts |= traces.counts()
        notes: tuple[Notes | None, ...] = (access_log, journal, traces, drift)
        self._notes = [each for each in notes if each is not None]
        self._writing = ExitStack()
        self._gate = Gate(
            keys=config.keys,
            max_held=config.max_held or max(256_000_000, 4 * config.max_body),
            max_per_address=config.max_per_address,
        )
        self._gate.held.make_room = gateway.requests.unwaited.make_room
        gateway.requests.ahead.hold = self._gate.held.hold
        made = [
            make(
                gateway,
                config,
                gate=self._gate,
                reload=self.reload,
                metrics=self.metrics.render,
                live=self.live,
                history=kept,
            )
            for make in fronts or FRONTS
        ]
        self.fronts = [front for front in made if front is not None]
        for front in self.fronts:
            self.metrics.gauges |= front.gauges()
        self._ticker: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the main front listens."""
        return self.fronts[0].address

    async def start(self) -> None:
        """Listen, and have the first worker up; raises `SetupError` if either cannot be, and leaves nothing behind."""
        try:
            await self._open()
        except BaseException:
            self._stop_accepting()
            await self._close(0)
            self._writing.close()
            raise
        self._ticker = asyncio.create_task(self._tick())
        _quiet_collector()
        self._stalls.start()

    async def _open(self) -> None:
        for front in self.fronts:
            front.bind()
        for each in self._notes:
            each.start()
            self._writing.callback(each.stop)
        # Probes are answered while models load: live, not ready.
        for front in self.fronts:
            await front.open()
            log.debug("listening", extra={"at": front.address})
        # What serves pages would be imported by the first of them, for 50 ms on the event loop.
        importing = asyncio.create_task(asyncio.to_thread(anyio.run, _open_a_file))
        try:
            await self.gateway.start()
        finally:
            await importing

    async def _tick(self) -> None:
        while True:
            now = self.gateway.clock.now()
            self.signals.tick(now)
            self.live.tick(now)
            await asyncio.sleep(EVERY_S)

    async def stop(self) -> int:
        """Leave in order; every accepted request is answered, and its answer read, if the grace time allows.

        How many requests or clients it did not suffice for.
        """
        if self._config.drain_delay and self.gateway.why_not_ready() is None:
            # Not ready, and everything else as before: who asks for readiness only now and then still sends requests.
            self.gateway.is_leaving = True
            await asyncio.sleep(self._config.drain_delay)
        grace_s = self._config.grace
        end = self.gateway.clock.now() + grace_s
        # Nobody new: readiness turns false, requests on open connections are refused, then the ports close.
        self.gateway.close()
        self.live.stream.close()
        self._stop_accepting()
        # What was accepted is answered; its workers must still be there for that.
        await self.gateway.drain()
        cut_off = self.gateway.requests.waiting
        # Answers are read before the processes that made them go.
        cut_off += await self._close(max(min(_LAST_WORD_S, grace_s), end - self.gateway.clock.now()))
        if self._ticker is not None:
            self._ticker.cancel()
        self._stalls.stop()
        try:
            await self.gateway.stop()
        finally:
            self._writing.close()
        return cut_off

    def _stop_accepting(self) -> None:
        for front in self.fronts:
            front.stop_accepting()

    async def _close(self, patience_s: float) -> int:
        return sum(await asyncio.gather(*(front.close(patience_s) for front in self.fronts)))

    async def reload(self) -> list[str]:
        """Load the target and the keys again and switch to them; the models served now. Raises `SetupError`."""
        self.gateway.releases.enter_folder()
        self._gate.read_again()
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


def _journal(config: Config, gateway: Gateway) -> Journal | None:
    if config.history is None:
        return None
    folder = Path(config.history).expanduser()
    check_folder(folder)
    return Journal(
        gateway.events,
        folder,
        most_bytes=config.history_bytes,
        most_s=config.history_age,
        models=gateway.catalogue.models,
        now=gateway.clock.now,
        wall=wall,
        is_heavy=is_heavy_json,
        redact=gateway.redaction.of,
    )


def _traces(config: Config, gateway: Gateway) -> Traces | None:
    if config.traces is None:
        return None
    collector = Collector(config.traces, config.trace_headers or "", config.trace_service)
    return Traces(gateway.events, collector, models=gateway.catalogue.models, now=gateway.clock.now, wall=wall)


def _drift(config: Config, gateway: Gateway, versions: Versions) -> Drift:
    """What is usual lies beside what was learned of the models' speed."""
    file = None
    if config.profiles != "none":
        profile = ProfileFile(Path(config.profiles).expanduser(), gateway.releases.target)
        file = profile.path.with_suffix(".drift.json")
    return Drift(gateway.events, models=gateway.catalogue.models, wall=wall, file=file, reader=versions.told)


def warn_if_nice(cure: str = "start it at 0") -> None:
    """Say so if this process is behind others."""
    if (niceness := os.nice(0)) > 0:
        log.warning(
            "the gateway runs at a nice value above 0: others go first, and answers may be late; %s",
            cure,
            extra={"nice": niceness},
        )


async def _open_a_file() -> None:
    """As a page is opened."""
    async with await anyio.open_file(__file__):
        pass


def _quiet_collector() -> None:
    """Keep the garbage collector from pausing the event loop: a full pass takes longer than a margin.

    What is loaded by now stays, so it need not be looked at again; requests and connections leave no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


async def serve(
    target: Path, config: Config, on_ready: Callable[[], None] | None = None, early: Early | None = None
) -> int:
    """Run a server until a signal ends it; the exit code. A second signal leaves at once."""
    stopping = asyncio.Event()
    server = Server(target, config)
    server.gateway.releases.folder = work_folder()
    server.gateway.supervisor.early = early

    def on_signal() -> None:
        if stopping.is_set():
            server.kill()
            os._exit(130)
        log.info("finishing open requests; Ctrl-C again quits now")
        stopping.set()

    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would have us lose our workers' ends
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, server.reload_soon)
    warn_if_nice()
    give_back_memory()
    starting = asyncio.create_task(server.start())
    stop_asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()  # raises SetupError if it could not start
        for info in server.gateway.catalogue.models.values():
            log.info("ready", extra={"model": info.name, "at": server.address + info.paths[0]})
        log.info("open the page", extra={"at": server.address + "/"})
        if on_ready is not None:
            on_ready()
        await stop_asked
    else:
        starting.cancel()
    cut_off = await server.stop()
    # Whoever asks again now asks for what is under way. The closing loop would give the signals back their default,
    # which ends the process; a mask would not do, as it holds for this thread alone.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    log.info("stopped", extra={"cut_off": cut_off} if cut_off else {})
    return CUT_OFF if cut_off else 0


def run(target: Path, config: Config, on_ready: Callable[[], None] | None = None, early: Early | None = None) -> int:
    """Run a server in its own event loop; `on_ready` is called when it answers. `early` may become its first worker."""
    return uvloop.run(serve(target, config, on_ready, early))
