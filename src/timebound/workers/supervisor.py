"""Starts worker processes, watches them, replaces those that die, stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.events import Events, WorkerDown, WorkerUp
from timebound.types import ModelInfo
from timebound.workers import wire
from timebound.workers.pool import Control, Dispatch, Slot

log = logging.getLogger("timebound.workers")

_NICENESS = 10
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_STEADY_S = 30.0
"""A worker that lived this long ends a row of quick deaths."""

# Math libraries start a thread per core each, in every worker, unless told not to.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What workers to run; None leaves a number to the machine and the backend."""

    target: Path
    cores: int
    workers: int | None = None
    slots: int | None = None
    threads: int | None = None
    log_level: str = "info"
    log_json: bool = False


class Supervisor:
    """Keeps `plan` true: as many workers as it asks for, each loaded and warmed up before it takes batches."""

    def __init__(
        self,
        plan: WorkerPlan,
        *,
        dispatch: Dispatch,
        on_models: Callable[[list[ModelInfo]], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._dispatch = dispatch
        self._on_models = on_models
        self._events = events
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._next_number = 1
        self._wanted = plan.workers or 1
        self._quick_deaths = 0
        self._models_known = False
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def workers_up(self) -> int:
        """Workers that take batches now."""
        return sum(worker.is_up for worker in self._workers.values())

    @property
    def slots_up(self) -> int:
        """Batches that can run at once now."""
        return sum(len(worker.slots) for worker in self._workers.values() if worker.is_up)

    async def start(self) -> None:
        """Return when the first worker is up; raise `SetupError` with its reason if it cannot be."""
        first = await self._spawn()
        try:
            ready = await first.ready
        except SetupError:
            await first.reap()
            raise
        # A backend that runs in threads serves all cores from one copy of the weights; others need processes.
        if self._plan.workers is None and ready.slots < self._plan.cores and self._plan.slots is None:
            self._wanted = self._plan.cores
        for _ in range(self._wanted - 1):
            self._keep(self._replace(0.0))

    async def stop(self) -> None:
        """Ask every worker to leave and wait for it; who does not leave within two seconds is killed."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        for worker in list(self._workers.values()):
            worker.control.send(wire.Stop())
        await asyncio.gather(*(worker.reap(patience_s=2.0) for worker in list(self._workers.values())))

    def kill(self) -> None:
        """End every worker now, running batches or not."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.kill()

    def describe(self) -> list[dict[str, int | bool]]:
        """The workers as people and pages see them."""
        return [
            {"worker": w.number, "pid": w.pid, "slots": len(w.slots), "is_up": w.is_up} for w in self._workers.values()
        ]

    async def _spawn(self) -> _Worker:
        plan = self._plan
        max_slots = plan.slots or max(1, plan.cores // (plan.workers or 1))
        threads = plan.threads or max(1, plan.cores // ((plan.workers or 1) * max_slots))
        worker = _Worker(self._next_number, max_slots, self._dispatch)
        self._next_number += 1
        self._workers[worker.number] = worker
        await worker.start(wire.Load(str(plan.target), max_slots, threads, _NICENESS, plan.log_level, plan.log_json))
        self._keep(self._watch(worker))
        return worker

    async def _watch(self, worker: _Worker) -> None:
        """See one worker through its life, and replace it if it dies unasked."""
        start = self._clock.now()
        try:
            ready = await worker.ready
        except SetupError as error:
            if self._quick_deaths or self.workers_up or self._models_known:
                log.error("worker %d cannot load: %s", worker.number, error)
        else:
            self._models_known = True
            self._on_models(ready.models)
            await worker.open_slots(ready.slots)
            self._events.emit(WorkerUp(worker.number, worker.pid, ready.slots))
        code = await worker.gone()
        del self._workers[worker.number]
        self._events.emit(WorkerDown(worker.number, worker.pid, code, self._is_stopping))
        if self._is_stopping or not self._models_known:
            return
        lived_s = self._clock.now() - start
        self._quick_deaths = 0 if lived_s > _STEADY_S else self._quick_deaths + 1
        self._keep(self._replace(backoff_s(self._quick_deaths)))

    async def _replace(self, delay_s: float) -> None:
        if delay_s:
            log.warning("starting a new worker", extra={"in_s": round(delay_s, 2)})
            await asyncio.sleep(delay_s)
        if not self._is_stopping:
            await self._spawn()

    def _keep(self, coroutine: Coroutine[None, None, None]) -> None:
        # asyncio holds tasks weakly: one that nobody keeps can vanish half-way.
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Worker:
    """One worker process and the gateway's ends of its sockets."""

    def __init__(self, number: int, max_slots: int, dispatch: Dispatch) -> None:
        self.number = number
        self.slots: list[Slot] = []
        self.is_up = False
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[wire.Ready] = loop.create_future()
        self.control = Control(self._on_frame, self._on_close)
        self._dispatch = dispatch
        self._pairs = [wire.socket_pair() for _ in range(1 + max_slots)]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self, load: wire.Load) -> None:
        """Start the process and tell it what to load."""
        theirs = [pair[1] for pair in self._pairs]
        numbers = [end.fileno() for end in theirs]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        for variable in _THREAD_VARIABLES:
            environment.setdefault(variable, str(load.threads))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "timebound.workers.process", *map(str, numbers), pass_fds=numbers, env=environment
        )
        for end in theirs:
            end.close()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.control, sock=self._pairs[0][0])
        self.control.send(load)

    async def open_slots(self, count: int) -> None:
        """Open the slots the worker says it has; it takes batches from now on."""
        ours = [pair[0] for pair in self._pairs[1:]]
        self.slots = [Slot(self.number, number, self._dispatch) for number in range(count)]
        self.is_up = True
        for slot, sock in zip(self.slots, ours, strict=False):
            await slot.open(sock)
        _close(ours[count:])

    async def gone(self) -> int | None:
        """Wait until the process has ended; its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        self.is_up = False
        if not self.slots:
            _close([pair[0] for pair in self._pairs[1:]])
        for slot in self.slots:
            slot.close()
        return code

    async def reap(self, patience_s: float = 5.0) -> None:
        """Wait for the process to end, and kill it when patience is over."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _on_frame(self, head: wire.Head) -> None:
        if isinstance(head, wire.Ready) and not self.ready.done():
            self.ready.set_result(head)
        elif isinstance(head, wire.Failed) and not self.ready.done():
            log.debug("worker %d failed to load\n%s", self.number, head.trace)
            self.ready.set_exception(SetupError(head.sentence))

    def _on_close(self) -> None:
        if not self.ready.done():
            self.ready.set_exception(SetupError("the worker process ended before it was ready; see its output above"))
        self.ready.exception()  # seen: a worker that dies while stopping has nobody waiting for this


def backoff_s(deaths: int) -> float:
    """How long to wait before starting a worker after so many quick deaths in a row."""
    return min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(deaths - 1, 10)) if deaths > 1 else 0.0


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
