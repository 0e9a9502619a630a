"""Starts worker processes, watches them, replaces those that die, stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.events import Events, WorkerDown, WorkerUp
from timebound.types import ModelInfo
from timebound.workers import wire
from timebound.workers.child import Child
from timebound.workers.pool import Dispatch, Slot
from timebound.workers.understudy import Understudy

log = logging.getLogger("timebound.workers")

_NICENESS = 10
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_STEADY_S = 30.0
"""A worker that lived this long ends a row of quick deaths."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What workers to run; None leaves a number to the machine and the backend."""

    target: Path
    cores: int
    workers: int | None = None
    slots: int | None = None
    threads: int | None = None
    log_level: str = "info"
    log_json: bool = False


class _Worker:
    """A child that serves batches, or the understudy's errands."""

    def __init__(self, child: Child, *, is_understudy: bool) -> None:
        self.child = child
        self.is_understudy = is_understudy
        self.slots: list[Slot] = []
        self.is_up = False

    def open_slots(self, count: int, dispatch: Dispatch) -> None:
        """Make its slots; when one of them is lost the worker is, and all go down together."""

        def on_lost() -> None:
            if self.is_up:
                self.is_up = False
                self.child.kill()  # if it lives, it is out of step; the next one is not
                dispatch.slots_down(self.slots)

        self.slots = [Slot(self.child.number, number, count, dispatch, on_lost) for number in range(count)]


class Supervisor:
    """Keeps `plan` true: as many workers as it asks for, each loaded and warmed up before it takes batches.

    If a model has a `fallback` or a `size` of its own, one more process is kept: the understudy.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        *,
        dispatch: Dispatch,
        understudy: Understudy,
        on_models: Callable[[list[ModelInfo]], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._dispatch = dispatch
        self._understudy = understudy
        self._on_models = on_models
        self._events = events
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._next_number = 1
        self._quick_deaths = {True: 0, False: 0}  # of the understudy, and of the others
        self._is_started = False
        self._doors = asyncio.Event()
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def workers_up(self) -> int:
        """Workers that take batches now."""
        return sum(worker.is_up for worker in self._workers.values() if not worker.is_understudy)

    @property
    def slots_up(self) -> int:
        """Batches that can run at once now."""
        return sum(len(worker.slots) for worker in self._workers.values() if worker.is_up)

    async def start(self) -> None:
        """Return when the first worker is up, and the understudy if one is needed; raise `SetupError` if not."""
        ready = await self._start_first(is_understudy=False)
        if any(info.has_fallback or info.has_size for info in ready.models):
            await self._start_first(is_understudy=True)
        self._is_started = True
        self._doors.set()
        wanted = self._plan.workers or 1
        # A backend that runs in threads serves all cores from one copy of the weights; others need processes.
        if self._plan.workers is None and ready.slots < self._plan.cores and self._plan.slots is None:
            wanted = self._plan.cores
        for _ in range(wanted - 1):
            self._keep(self._replace(0.0, is_understudy=False))

    async def _start_first(self, *, is_understudy: bool) -> wire.Ready:
        child = (await self._spawn(is_understudy=is_understudy)).child
        try:
            return await child.ready
        except SetupError:
            self.kill()
            await child.reap()
            raise

    async def stop(self) -> None:
        """Ask every worker to leave and wait for it; who does not leave within two seconds is killed."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        children = [worker.child for worker in self._workers.values()]
        for worker in self._workers.values():
            if worker.is_up:
                worker.child.control.send(wire.Stop())
            else:
                worker.child.kill()  # it is loading, and would not hear before that is done
        await asyncio.gather(*(child.reap(patience_s=2.0) for child in children))

    def kill(self) -> None:
        """End every worker now, running batches or not."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.child.kill()

    def describe(self) -> list[dict[str, int | bool]]:
        """The workers as people and pages see them."""
        return [
            {
                "worker": worker.child.number,
                "pid": worker.child.pid,
                "slots": len(worker.slots),
                "is_up": worker.is_up,
                "is_understudy": worker.is_understudy,
            }
            for worker in self._workers.values()
        ]

    async def _spawn(self, *, is_understudy: bool) -> _Worker:
        plan = self._plan
        max_slots = 1 if is_understudy else plan.slots or max(1, plan.cores // (plan.workers or 1))
        threads = plan.threads or max(1, plan.cores // ((plan.workers or 1) * max_slots))
        worker = _Worker(Child(self._next_number, max_slots), is_understudy=is_understudy)
        self._next_number += 1
        self._workers[worker.child.number] = worker
        # The understudy's work is short and urgent: it runs level with the gateway.
        niceness = 0 if is_understudy else _NICENESS
        await worker.child.start(
            wire.Load(str(plan.target), max_slots, threads, niceness, plan.log_level, plan.log_json, is_understudy)
        )
        self._keep(self._watch(worker))
        return worker

    async def _watch(self, worker: _Worker) -> None:
        """See one worker through its life, and replace it if it dies unasked."""
        start, child = self._clock.now(), worker.child
        try:
            ready = await child.ready
        except SetupError as error:
            if self._is_started:
                log.error("worker %d cannot load: %s", child.number, error)
        else:
            await self._open(worker, ready)
        code = await child.gone()
        del self._workers[child.number]
        for slot in worker.slots:
            slot.close()
        if not (self._is_started or worker.is_up or worker.slots):
            return  # the first one could not load: `start` tells why
        self._events.emit(WorkerDown(child.number, child.pid, code, self._is_stopping))
        if self._is_stopping:
            return
        lived_s = self._clock.now() - start
        role = worker.is_understudy
        self._quick_deaths[role] = 0 if lived_s > _STEADY_S else self._quick_deaths[role] + 1
        self._keep(self._replace(backoff_s(self._quick_deaths[role]), is_understudy=role))

    async def _open(self, worker: _Worker, ready: wire.Ready) -> None:
        sockets = worker.child.take_sockets(ready.slots)
        if worker.is_understudy:
            await self._understudy.open(sockets[0])
            worker.is_up = True
            return
        # No request is let in before whoever may have to stand in for the model is there.
        await self._doors.wait()
        worker.is_up = True
        self._on_models(ready.models)
        worker.open_slots(ready.slots, self._dispatch)
        for slot, sock in zip(worker.slots, sockets, strict=True):
            await slot.open(sock)
        if worker.is_up:  # else it died meanwhile
            for slot in worker.slots:
                self._dispatch.slot_up(slot)
        self._events.emit(WorkerUp(worker.child.number, worker.child.pid, ready.slots))

    async def _replace(self, delay_s: float, *, is_understudy: bool) -> None:
        if delay_s:
            log.warning("starting a new worker", extra={"in_s": round(delay_s, 2)})
            await asyncio.sleep(delay_s)
        while not self._is_stopping:
            try:
                await self._spawn(is_understudy=is_understudy)
                return
            except OSError as error:
                log.error("cannot start a worker: %s", error)
                await asyncio.sleep(1.0)

    def _keep(self, coroutine: Coroutine[None, None, None]) -> None:
        # asyncio holds tasks weakly: one that nobody keeps can vanish half-way.
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def backoff_s(deaths: int) -> float:
    """How long to wait before starting a worker after so many quick deaths in a row."""
    return min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(deaths - 1, 10)) if deaths > 1 else 0.0
