"""A served model without a listener: everything between a question and its answer, in this process and its workers.

    async with tb.Gateway("app.py") as gateway:
        answer = await gateway.ask("mood", {"id": "a1", "text": "a great day"})

It owns the store, the requests, the workers and the catalogue, and binds no port. `server.py` puts listeners around
one; a program, a test or a replica of another system uses it as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from timebound import versions
from timebound.asking import Answer, Asking
from timebound.catalogue import Catalogue
from timebound.clock import MonotonicClock, wall
from timebound.config import Config, of_options
from timebound.errors import RequestError, SetupError
from timebound.events import Events
from timebound.handlers.store import LIST
from timebound.machine.cores import cores as usable_cores
from timebound.machine.gpus import chosen, gpus
from timebound.profile import ProfileFile, this_machine
from timebound.reading import Reading
from timebound.releases import Releases
from timebound.requests.dispatcher import Dispatcher
from timebound.scheduler import POLICIES, Policy, Scheduler
from timebound.scheduler.offered import Offered, waiting_s
from timebound.scheduler.outlook import outlook
from timebound.store.base import open_store
from timebound.target import shown
from timebound.types import ModelInfo
from timebound.versions import Traffic
from timebound.workers.crew import Recycling
from timebound.workers.fetcher import Fetcher
from timebound.workers.messages import WorkerPlan
from timebound.workers.redaction import Redaction
from timebound.workers.slots import Slots
from timebound.workers.supervisor import Supervisor
from timebound.workers.understudy import Understudy

log = logging.getLogger("timebound.gateway")


class Gateway:
    """Serves `target` to this process: a file, a folder or an app, as `timebound serve` takes it.

    `options` are those of `timebound serve`, such as `workers=2` or `store="redis://..."`; `policy` names one of
    `scheduler.POLICIES`, or is one of your own; `cores` says how many to count on, if not on all. Make it where an
    event loop runs. `start` returns when the first worker has answered its warm-up run.
    """

    def __init__(
        self,
        target: str | Path,
        config: Config | None = None,
        *,
        policy: str | Policy | None = None,
        cores: int | None = None,
        **options: Any,
    ) -> None:
        config = self.config = config or of_options(options)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise SetupError("make a Gateway where an event loop runs: async with tb.Gateway(...)") from None
        self.loop = loop
        self.reading = Reading(loop)
        self.clock = MonotonicClock()
        self.events = Events(loop.call_soon)
        self.catalogue = Catalogue(self.clock)
        self.releases = Releases(Path(target), self.clock, self.events)
        self.store = open_store(config, clock=self.clock, events=self.events, loop=loop)
        understudy, fetcher = Understudy(loop), Fetcher(loop)
        self.redaction = Redaction(understudy, loop)
        self._profile = _profile_file(config, self.releases.target)
        self._profiles = self._profile.read() if self._profile else {}
        self._scheduler = Scheduler(config.margin, max_batch_bytes=config.max_batch_bytes, policy=_policy(policy))
        self.requests = Dispatcher(
            self._scheduler,
            self.catalogue,
            slots=Slots(),
            max_queue=config.max_queue,
            helper=understudy,
            fetcher=fetcher,
            clock=self.clock,
            events=self.events,
            loop=loop,
            margin_s=config.margin,
            store=self.store,
            wall=wall,
            profiles=self._profiles,
        )
        self.catalogue.listen(self.requests.add_model, self.requests.remove_model)
        self._asking = Asking(
            self.catalogue, self.requests, self.reading, clock=self.clock, max_deadline_s=config.max_deadline
        )
        self.supervisor = Supervisor(
            self._plan(cores or usable_cores()),
            dispatch=self.requests,
            understudy=understudy,
            fetcher=fetcher,
            on_models=self._models_ready,
            events=self.events,
            clock=self.clock,
            recycling=Recycling(
                memory_bytes=config.recycle_memory, after_s=config.recycle_after, requests=config.recycle_requests
            ),
        )
        self._is_started = False
        self._watcher: asyncio.Task[None] | None = None
        self.unloaded: dict[str, list[ModelInfo]] = {}
        """Models that workers hold and that are not served, because the operator said so."""
        self.is_leaving = False
        """Whether it will close soon: not ready, though it still answers."""
        self._offered = Offered()
        self._began = self.clock.now()

    def _plan(self, cores: int) -> WorkerPlan:
        config = self.config
        return WorkerPlan(
            target=str(self.releases.target),
            cores=cores,
            workers=config.workers,
            slots=config.slots,
            threads=config.threads,
            hands=config.hands,
            device="" if config.device == "auto" else config.device.partition(":")[0],
            gpus=chosen(config.device, gpus(os.environ)),
            app=dict(config.app),
            engines=config.engines,
            modes=config.modes,
            max_batch=config.max_batch,
            log_level=config.least_logged,
            log_json=config.logs_json,
            log_colour=sys.stderr.isatty(),
            versions=versions.to_load(self.releases.traffic),
            load_timeout_s=config.load_timeout,
        )

    # ------------------------------------------------------------------ its life

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.drain()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Have the store and the first worker up; raises `SetupError` if one cannot be."""
        if self._is_started:
            raise SetupError("this gateway was started before; make another: async with tb.Gateway(...)")
        self._is_started = True
        try:
            await self.store.start()
            await self.supervisor.start()
        except BaseException:
            self._is_started = False
            self.supervisor.kill()
            await self.store.stop()
            raise
        if self.config.watch:
            self._watcher = asyncio.create_task(self.releases.watch(self.supervisor))

    def close(self) -> None:
        """Accept nothing any more."""
        self.requests.close()
        self.supervisor.close()
        if self._watcher is not None:
            self._watcher.cancel()

    async def drain(self) -> None:
        """Accept nothing any more, and return when every accepted request is answered or the grace time is over."""
        self.close()
        try:
            await asyncio.wait_for(self.requests.drained(), self.config.grace)
        except TimeoutError:
            log.error("the grace time is over", extra={"unanswered": self.requests.waiting})

    async def stop(self) -> None:
        """Let the workers and the store go, and keep what was learned; `drain` comes before."""
        slots = self.supervisor.slots_up
        try:
            await self.supervisor.stop()
        finally:  # also for who is cancelled meanwhile
            self.supervisor.kill()
            self.reading.close()
            # Results that are not written yet are other servers' answers; claims left behind would hold them up.
            await self.store.stop()
            if self._profile is not None:
                self._profile.write(
                    {**self._profiles, **self.requests.learned()}, this_machine(slots, self._scheduler.devices)
                )

    def kill(self) -> None:
        """End the workers without a word; for a process that is about to leave."""
        self.supervisor.kill()

    def _models_ready(self, models: list[ModelInfo]) -> None:
        if self.config.deadline is not None:
            models = [msgspec.structs.replace(info, deadline_s=self.config.deadline) for info in models]
        if self.config.history is None:  # nobody would read them
            models = [msgspec.structs.replace(info, keep_votes=0.0) for info in models]
        self.unloaded = {name: [info for info in models if info.base == name] for name in self.unloaded}
        models = [info for info in models if info.base not in self.unloaded]
        self.catalogue.update(models, self.releases.traffic)
        self.store.hurry(self.catalogue.shortest_s)

    # ------------------------------------------------------------------ what it is asked

    async def ask(
        self, model: str, item: Any, *, deadline: float | None = None, key: str | None = None, priority: int = 0
    ) -> Answer:
        """A model's answer to one item: bytes as they are, anything else as JSON.

        `deadline` is in seconds from now; without, it is the model's own. Items with the same `key` are one request.
        Raises a `RequestError` that says why there is no answer. Who stops waiting has left, as a client would.
        """
        if asyncio.get_running_loop() is not self.loop:
            detail = (
                "the gateway runs in another event loop; ask by asyncio.run_coroutine_threadsafe(..., gateway.loop)"
            )
            raise RequestError(detail)
        return await self._asking.ask(model, item, deadline, key, priority)

    # ------------------------------------------------------------------ what the operator asks

    async def ask_again(self, model: str, version: str, body: bytes) -> Answer:
        """What a version answers now to a body that the history kept: of no version, the main one."""
        versions = [info for info in self.catalogue.models.values() if info.base == model]
        info = next(
            (info for info in versions if info.version == version or (not version and info.name == model)), None
        )
        if info is None:
            served = ", ".join(f"{info.base} {info.version}" for info in versions) or "none of it"
            detail = f"version {version} of {model} is no longer served; served is {served}"
            raise RequestError(detail, code="unknown_model")
        return await self._asking.again(info, body)

    async def reload(self) -> list[str]:
        """Load the target again and switch to it; the models served now. Raises `SetupError`."""
        return await self.releases.reload(self.supervisor)

    async def scale(self, workers: int) -> None:
        """Have so many worker processes from now on, until the server restarts; raises `SetupError`."""
        await self.releases.scale(workers, self.supervisor)

    async def load_model(self, model: str) -> None:
        """Serve a model as the target has it now; raises `SetupError` if it has none of this name."""
        before = self.unloaded.pop(model, None)
        try:
            served = await self.reload()
        except SetupError:
            if before is not None:
                self.unloaded[model] = before
            raise
        if model not in {name.partition("@")[0] for name in served}:
            raise SetupError(
                f"{shown(self.releases.target)} has no model of this name; it has {', '.join(self.catalogue.names)}"
            )

    def unload_model(self, model: str) -> None:
        """Serve a model no more until it is loaded again or the server restarts; raises `SetupError`."""
        rest = [info for info in self.catalogue.models.values() if info.base != model]
        gone = [info for info in self.catalogue.models.values() if info.base == model]
        if not gone:
            raise SetupError(f"it is not served; served are {', '.join(self.catalogue.names)}")
        if not rest:
            raise SetupError("it is the last model; stop the server instead")
        self.unloaded[model] = gone
        self.catalogue.update(rest, self.releases.traffic)

    def traffic(self, model: str) -> Traffic:
        """How a model's requests are divided among its versions now."""
        return self.releases.traffic_of(model)

    async def set_traffic(self, model: str, traffic: Traffic) -> Traffic:
        """Divide a model's requests among its versions, from now on and after a restart."""
        return await self.releases.divide(model, lambda folder: versions.changed(folder, traffic), self.supervisor)

    async def roll_back(self, model: str) -> Traffic:
        """Divide a model's requests as before the last change; asked again, as before the one before."""
        return await self.releases.divide(model, versions.rolled_back, self.supervisor)

    @property
    def target(self) -> Path:
        """What is served."""
        return self.releases.target

    @property
    def has_handlers(self) -> bool:
        """Whether handlers of model archives are served, or may be: errors are then in the words of their clients."""
        return self.target.suffix == LIST or any(info.is_handler for info in self.catalogue.models.values())

    def why_not_ready(self) -> str | None:
        """Why no request would be answered by a model now, or None."""
        if self.requests.is_closed or self.is_leaving:
            return "draining"
        if not self.catalogue.models and not self.supervisor.slots_up:
            return "loading"
        if not self.supervisor.slots_up:
            trouble = self.supervisor.trouble
            return f"no worker is up: {trouble}" if trouble else "no worker is up"
        return "every slot hangs" if self.requests.is_stuck else None

    @property
    def progress(self) -> str:
        """How far a worker is that prepares for long; empty if none says so."""
        return self.supervisor.progress

    def load(self, now: float) -> tuple[float, float, int]:
        """Slot seconds of work that ever came, seconds until what waits now would be done, and the slots.

        Those that share a device are one.
        """
        view, slots = self._scheduler.view(now), self.supervisor.slots_up
        return self._offered.count(view), waiting_s(view), view.slots if slots else 0

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        requests, supervisor, store = self.requests, self.supervisor, self.store
        return {
            "requests_pending": ("Requests accepted and not yet answered.", lambda: requests.waiting),
            "requests_queued": ("Requests waiting for a slot.", requests.queued),
            "workers_up": ("Workers that take batches.", lambda: supervisor.workers_up),
            "slots_up": ("Batches that can run at once.", lambda: supervisor.slots_up),
            "margin_seconds": ("Kept free before each deadline.", lambda: requests.margin_s),
            "store_up": ("Whether results are shared as configured.", lambda: store.trouble is None),
            "store_memory_bytes": ("Bytes of results kept in memory.", lambda: store.memory_bytes),
        }

    def status(self) -> dict[str, Any]:
        """What is running, as /v1/models and the page show it."""
        reason, view = self.why_not_ready(), self._scheduler.view(self.clock.now())
        outlooks = {
            served.spec.name: [round(each_s * 1e3, 2) for each_s in outlook(view, served)]
            for served in view.models
            if reason is None
        }
        models = [
            {
                **msgspec.to_builtins(msgspec.structs.replace(info, samples=[])),
                "samples": len(info.samples),  # the page fetches them once; this is asked for again and again
                "paths": info.paths,
                "state": "ready" if reason is None else "loading",
                "reason": reason,
                "workers": self.supervisor.workers_up,
                "slots": self.supervisor.slots_up,
                "sent_now_ms": outlooks.get(info.name, []),
                "margin_ms": round(self.requests.margin_s * 1e3, 2),
            }
            for info in self.catalogue.models.values()
        ]
        return {
            "models": models,
            "workers": self.supervisor.describe(),
            "degraded": self.store.trouble,
            "uptime_s": round(self.clock.now() - self._began, 3),
            "pid": os.getpid(),
        }


def _policy(chosen: str | Policy | None) -> Policy | None:
    if not isinstance(chosen, str):
        return chosen
    if chosen not in POLICIES:
        raise SetupError(f"there is no policy {chosen!r}; known are {', '.join(POLICIES)}")
    return POLICIES[chosen]()


def _profile_file(config: Config, target: Path) -> ProfileFile | None:
    if config.profiles == "none":
        return None
    return ProfileFile(Path(config.profiles).expanduser(), target)
