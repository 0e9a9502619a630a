"""Builds every room, wires them, starts and stops them in order; the only file that knows them all."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from timebound import __version__, versions
from timebound.admission import Gate, Held, Keys, Peers
from timebound.clock import MonotonicClock, wall
from timebound.config import Config
from timebound.errors import SetupError
from timebound.events import Events
from timebound.http.access import Access
from timebound.http.admin import Admin
from timebound.http.app import App
from timebound.http.connection import Limits, State
from timebound.http.control import Control
from timebound.http.cors import Cors
from timebound.http.guard import Guard
from timebound.http.hot import HotPath
from timebound.http.listener import Listener, bind, tls_context
from timebound.http.results import Results
from timebound.observe.access import AccessLog
from timebound.observe.life import log_life, warn_if_slow
from timebound.observe.metrics import Metrics
from timebound.profile import ProfileFile, this_machine
from timebound.scheduler.dispatcher import Dispatcher
from timebound.scheduler.pending import pending_of
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch
from timebound.split import Split
from timebound.store.choice import open_store
from timebound.target import check_target
from timebound.types import Deliver, ModelInfo, Request
from timebound.versions import Traffic
from timebound.workers import wire
from timebound.workers.crew import WorkerPlan
from timebound.workers.recycling import Recycling
from timebound.workers.supervisor import Supervisor
from timebound.workers.understudy import Understudy

log = logging.getLogger("timebound.server")


class Server:
    """One gateway and its workers. `start` returns when the first model answered its warm-up run."""

    def __init__(self, target: Path, config: Config) -> None:
        check_target(target)
        self._config = config
        self._keys = Keys(Path(config.keys).expanduser()) if config.keys is not None else None
        self._clock = MonotonicClock()
        self._started = self._clock.now()
        self.events = Events()
        loop = asyncio.get_running_loop()
        understudy = Understudy(loop)
        self._store = open_store(config, clock=self._clock, events=self.events, loop=loop)
        self._dispatcher = Dispatcher(
            Scheduler(config.margin, max_batch_bytes=config.max_batch_bytes),
            max_queue=config.max_queue,
            slots=_Slots(),
            helper=understudy,
            clock=self._clock,
            events=self.events,
            loop=loop,
            margin_s=config.margin,
            store=self._store,
            wall=wall,
        )
        self._profile = _profile_file(config, target)
        self._profiles = self._profile.read() if self._profile else {}
        self._target = target.resolve()
        self._traffic = versions.read_all(self._target)
        self._split = Split(self._submit, self.events)
        self._gate = Gate(self._split.submit)
        self._supervisor = Supervisor(
            WorkerPlan(
                target=target.resolve(),
                cores=len(os.sched_getaffinity(0)),
                workers=config.workers,
                slots=config.slots,
                threads=config.threads,
                engines=config.engines,
                log_level="debug" if config.debug else config.log_level,
                log_json=logs_json(config),
                versions=versions.to_load(self._traffic),
            ),
            dispatch=self._dispatcher,
            understudy=understudy,
            on_models=self._models_ready,
            events=self.events,
            clock=self._clock,
            recycling=Recycling(
                memory_bytes=config.recycle_memory, after_s=config.recycle_after, requests=config.recycle_requests
            ),
        )
        self._metrics = Metrics(self.events, self._gauges(), self._supervisor.memory)
        log_life(self.events)
        self._access = AccessLog(self.events) if config.access_log else None
        cors = Cors(config.cors_origins.split(",")) if config.cors_origins is not None else None
        hot = HotPath(
            self._gate,
            clock=self._clock,
            events=self.events,
            cap_s=config.max_deadline,
            cors=cors,
            is_behind=self._dispatcher.is_behind,
        )
        admin = Admin(config.admin_token, needs_token=self._keys is not None)
        access = Access(self._keys, has_open_metrics=config.open_metrics) if self._keys is not None else None
        self._held = Held(config.max_held or max(256_000_000, 4 * config.max_body))
        state = State(
            limits=_limits(config), held=self._held, peers=Peers(config.max_per_address), access=access, cors=cors
        )
        self._app = App(
            hot,
            status=self.status,
            why_not_ready=self._why_not_ready,
            metrics=self._metrics.render,
            version=__version__,
            results=Results(self._store, self._dispatcher.is_running, admin, has_clients=access is not None),
            control=Control(self, admin),
            trouble=lambda: self._store.trouble,
            guard=Guard(access, admin, self._clock) if access is not None else None,
            cors=cors,
            held=self._held,
        )
        tls = tls_context(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
        self._scheme = "http" if tls is None else "https"
        self._listener = Listener(
            self._app, hot=hot, state=state, keep_alive_s=config.keep_alive, events=self.events, tls=tls
        )
        self._watcher: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen, and have the first worker up; raises `SetupError` if either cannot be."""
        sock = bind(self._config.host, self._config.port, is_shared=self._config.reuse_port)
        host, port = sock.getsockname()[:2]
        self.address = f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if self._access is not None:
            self._access.start()
        log.debug("listening", extra={"at": self.address})
        # Probes are answered while models load: live, not ready.
        await self._listener.open(sock)
        try:
            await self._store.start()
            await self._supervisor.start()
        except BaseException:
            await self._listener.close(0)
            raise
        if self._config.watch:
            self._watcher = asyncio.create_task(self._watch())
        _quiet_collector()

    async def stop(self) -> None:
        """Leave in order; every accepted request is answered if the grace time allows."""
        # Nobody new: readiness turns false, requests on open connections are refused, then the port closes.
        self._gate.drain()
        if self._watcher is not None:
            self._watcher.cancel()
        self._listener.stop_accepting()
        # What was accepted is answered; its workers must still be there for that.
        try:
            await asyncio.wait_for(self._dispatcher.drained(), self._config.grace)
        except TimeoutError:
            log.error("the grace time is over", extra={"unanswered": self._dispatcher.waiting})
        # Answers are written out before the processes that made them go.
        await self._listener.close(min(1.0, self._config.grace))
        slots = self._supervisor.slots_up
        await self._supervisor.stop()
        # Results that are not written yet are other servers' answers; claims left behind would hold them up.
        await self._store.stop()
        if self._profile is not None:
            self._profile.write({**self._profiles, **self._dispatcher.profile()}, this_machine(slots))
        if self._access is not None:
            self._access.stop()

    async def reload(self) -> list[str]:
        """Load the target and the keys again and switch to them; the models served now. Raises `SetupError`."""
        began = self._clock.now()
        if self._keys is not None:
            self._keys.read()
        check_target(self._target)
        before, self._traffic = self._traffic, versions.read_all(self._target)
        plan = msgspec.structs.replace(self._supervisor.plan, versions=versions.to_load(self._traffic))
        try:
            models = await self._supervisor.reload(plan)
        except BaseException:
            self._traffic = before
            raise
        names = [info.name for info in models]
        log.info("reloaded", extra={"models": ", ".join(names), "in_s": round(self._clock.now() - began, 2)})
        return names

    def traffic(self, model: str) -> Traffic:
        """How a model's requests are divided among its versions now."""
        self._check_versions(model)
        return self._traffic[model]

    async def set_traffic(self, model: str, traffic: Traffic) -> Traffic:
        """Divide a model's requests among its versions, from now on and after a restart."""
        return await self._change(model, lambda folder: traffic)

    async def roll_back(self, model: str) -> Traffic:
        """Divide a model's requests as before the last change."""
        return await self._change(model, versions.rolled_back)

    async def _change(self, model: str, change: Callable[[Path], Traffic]) -> Traffic:
        self._check_versions(model)
        folder = self._target / model
        file = folder / versions.FILE
        before = file.read_bytes() if file.is_file() else None
        traffic = versions.write(folder, change(folder))
        try:
            await self.reload()
        except BaseException:
            if before is None:
                file.unlink()
            else:
                file.write_bytes(before)
            raise
        return traffic

    def _check_versions(self, model: str) -> None:
        if model not in self._traffic:
            known = ", ".join(self._traffic) or "none"
            raise SetupError(f"{model!r} has no versions here; models in folders of versions: {known}")

    async def _watch(self) -> None:
        """Reload when files of the target have changed, and then stayed as they are for a second."""
        loaded = seen = versions.signature(self._target)
        while True:
            await asyncio.sleep(1.0)
            now = await asyncio.to_thread(versions.signature, self._target)
            if now == seen and now != loaded:
                loaded = now
                log.info("the target has changed")
                await self._reload_or_log()
            seen = now

    async def _reload_or_log(self) -> None:
        try:
            await self.reload()
        except SetupError as error:
            log.error("%s", error)

    def reload_soon(self) -> None:
        """The same for a signal, which waits for nothing; a failure is logged."""
        self._errand = asyncio.create_task(self._reload_or_log())

    def kill(self) -> None:
        """Leave without a word: end the workers; the caller exits the process."""
        self._supervisor.kill()

    def status(self) -> dict[str, Any]:
        """What is running, as /v1/models and the page show it."""
        reason = self._why_not_ready()
        models = [
            {
                **msgspec.to_builtins(msgspec.structs.replace(info, samples=[])),
                "samples": len(info.samples),  # the page fetches them once; this is asked for again and again
                "paths": info.paths,
                "state": "ready" if reason is None else "loading",
                "reason": reason,
                "workers": self._supervisor.workers_up,
                "slots": self._supervisor.slots_up,
            }
            for info in self._gate.models.values()
        ]
        return {
            "models": models,
            "workers": self._supervisor.describe(),
            "degraded": self._store.trouble,
            "version": __version__,
            "uptime_s": round(self._clock.now() - self._started, 3),
            "pid": os.getpid(),
        }

    def _submit(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        return partial(self._dispatcher.gone, self._dispatcher.submit(request, deliver))

    def _models_ready(self, models: list[ModelInfo]) -> None:
        for info in models:
            if self._config.deadline is not None:
                info = msgspec.structs.replace(info, deadline_s=self._config.deadline)  # noqa: PLW2901
            warn_if_slow(info)
            self._dispatcher.add_model(info, self._profiles.get(info.name))
            self._gate.open_for(info)
            self._app.serve(info)
        self._split.divide(models, self._traffic)
        self._store.hurry(min(info.deadline_s for info in self._gate.models.values()))
        served = {info.name: info for info in models}
        for name in set(self._gate.models) - set(served):
            base = name.partition("@")[0]
            self._dispatcher.remove_model(name, base if base in served else None)
            self._gate.close_for(name)
            self._app.stop_serving(name)

    def _why_not_ready(self) -> str | None:
        reason = self._gate.why_not_ready()
        if reason is None and not self._supervisor.slots_up:
            trouble = self._supervisor.trouble
            return f"no worker is up: {trouble}" if trouble else "no worker is up"
        if reason is None and self._dispatcher.is_stuck:
            return "every slot hangs"
        return reason

    def _gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        return {
            "requests_pending": ("Requests accepted and not yet answered.", lambda: self._dispatcher.waiting),
            "requests_queued": ("Requests waiting for a slot.", self._dispatcher.queued),
            "workers_up": ("Workers that take batches.", lambda: self._supervisor.workers_up),
            "slots_up": ("Batches that can run at once.", lambda: self._supervisor.slots_up),
            "margin_seconds": ("Kept free before each deadline.", lambda: self._dispatcher.margin_s),
            "store_up": ("Whether results are shared as configured.", lambda: self._store.trouble is None),
            "store_memory_bytes": ("Bytes of results kept in memory.", lambda: self._store.memory_bytes),
            "connections_open": ("Open client connections.", lambda: self._listener.connections),
            "held_bytes": ("Bytes of large bodies and unread answers in memory.", lambda: self._held.bytes),
        }


def _quiet_collector() -> None:
    """Keep the garbage collector from pausing the event loop: a full pass takes longer than a margin.

    What is loaded by now stays, so it need not be looked at again; requests and connections leave no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


class _Slots:
    """Between scheduler and workers: the one knows no sockets, the others know no tickets."""

    def send(self, slot: Any, batch: Batch, bodies: list[bytes], ask_after_s: float) -> None:
        cores = slot.siblings if batch.is_alone else 1
        deadlines = [ticket.deadline for ticket in batch.tickets]
        lengths = [len(body) for body in bodies]
        is_ensemble = pending_of(batch.tickets[0]).info.members > 1
        votes = [place for place, t in enumerate(batch.tickets) if pending_of(t).wants_votes] if is_ensemble else []
        slot.send(wire.Batch(batch.id, batch.model, deadlines, lengths, ask_after_s, cores, votes), bodies)

    def decide(self, slot: Any, batch: Batch, *, go: bool) -> None:
        slot.decide(batch.id, go=go)

    def worker_of(self, slot: Any) -> int:
        number: int = slot.worker
        return number

    def kill(self, slot: Any) -> None:
        slot.kill_worker()


def _profile_file(config: Config, target: Path) -> ProfileFile | None:
    if config.profiles == "none":
        return None
    return ProfileFile(Path(config.profiles).expanduser(), target.resolve())


def _limits(config: Config) -> Limits:
    return Limits(
        max_body=config.max_body,
        max_header=config.max_header,
        max_connections=config.max_connections,
        read_timeout=config.read_timeout,
        write_timeout=config.write_timeout,
    )


def logs_json(config: Config) -> bool:
    """Whether log lines are JSON: as the option says, else by whether a person is watching."""
    return config.log_format == "json" or (config.log_format == "auto" and not sys.stderr.isatty())


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
        for info in server.status()["models"]:
            log.info("ready", extra={"model": info["name"], "at": server.address + info["paths"][0]})
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
