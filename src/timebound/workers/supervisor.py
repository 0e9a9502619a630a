"""Starts worker processes, watches them, replaces those that die or are to be reloaded, stops them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

from msgspec.structs import replace

from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.events import Events, HandlersMeasured, WorkerDown, WorkerUp
from timebound.types import ModelInfo
from timebound.workers import messages
from timebound.workers.at_work import seen
from timebound.workers.child import Child
from timebound.workers.crew import Generation, Recycling, Worker, cpu_s_of, memory_of
from timebound.workers.early import Early
from timebound.workers.fetcher import Fetcher
from timebound.workers.messages import Role
from timebound.workers.muster import muster
from timebound.workers.output import Outputs
from timebound.workers.slots import Dispatch
from timebound.workers.understudy import Understudy

log = logging.getLogger("timebound.workers")

_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_AT_WORK_BACKOFF_S = 0.2
"""Where one call ended a process that others wait for."""
_STEADY_S = 5.0
"""A worker that was up for this long ends a row of quick deaths."""

_LOOK_EVERY_S = 1.0
_AFTER_FAILURE_S = 60.0
"""Nothing is recycled for so long after a replacement could not be loaded."""
_NEVER = Recycling()
_NICENESS_BESIDE = {Role.UNDERSTUDY: 0, Role.FETCHER: messages.NICENESS // 2}
"""Work that is short and urgent runs level with the gateway; what mostly waits for others, before the workers."""


class Supervisor:
    """Keeps `plan` true: as many workers as it asks for, each loaded and warmed up before it takes batches.

    If a model has a `fallback` or a `size` of its own, one more process is kept: the understudy; if one has a `fetch`,
    one more: the fetcher.
    """

    def __init__(
        self,
        plan: messages.WorkerPlan,
        *,
        dispatch: Dispatch,
        understudy: Understudy,
        fetcher: Fetcher,
        on_models: Callable[[list[ModelInfo]], None],
        events: Events,
        clock: Clock,
        recycling: Recycling = _NEVER,
    ) -> None:
        self._recycling = recycling
        self.trouble = ""
        """How the last worker ended that was not asked to, and when the next one comes; empty if all is well."""
        self._generation = Generation(1, plan)
        self._dispatch = dispatch
        self._beside = {Role.UNDERSTUDY: understudy, Role.FETCHER: fetcher}
        self._on_models = on_models
        self._events = events
        self._clock = clock
        self._workers: dict[int, Worker] = {}
        self._next_number = 1
        self._quick_deaths = dict.fromkeys(Role, 0)
        self._is_started = False
        self._has_tried = asyncio.Event()  # to start, or will not
        self._coming: Generation | None = None  # what a reload is loading
        self._is_closed = False
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._outputs = Outputs()
        self.early: Early | None = None
        """A process that the first worker may be, if there is one."""

    @property
    def workers_up(self) -> int:
        """Workers that take batches now."""
        return sum(worker.is_up for worker in self._workers.values() if worker.role is Role.WORKER)

    @property
    def workers_wanted(self) -> int:
        """Workers that there are to be: who dies is replaced."""
        return self._generation.wanted

    @property
    def slots_up(self) -> int:
        """Batches that can run at once now."""
        return sum(len(worker.slots) for worker in self._workers.values() if worker.is_up)

    @property
    def plan(self) -> messages.WorkerPlan:
        """What workers run now."""
        return self._generation.plan

    async def start(self) -> None:
        """Return when the first worker is up, and those beside it that are needed; raise `SetupError` if not."""
        generation = self._generation
        self._outputs.open()
        try:
            await muster(self, generation, is_whole=False, is_strict=True)
        except BaseException:  # also for who is cancelled meanwhile
            await self._dismiss(generation)
            # What they printed comes before the sentence that points to it.
            await asyncio.to_thread(self._outputs.close)
            raise
        finally:
            self._has_tried.set()
        self._is_started = True
        self._open_doors(generation)
        generation.wanted = generation.plan.wanted(generation.slots, generation.models)
        self._fill(generation, Role.WORKER)
        if self._recycling.is_on:
            self._keep(self._recycle())

    async def started(self) -> None:
        """Return when the first workers were let in; raises `SetupError` if they are not going to be."""
        await self._has_tried.wait()
        if not self._is_started:
            raise SetupError("the server is stopping")

    async def reload(self, plan: messages.WorkerPlan | None = None) -> list[ModelInfo]:
        """Load the target again in new workers, and let the old ones go when those are up; what was loaded.

        Raises `SetupError` if it cannot be loaded or answers no warm-up run; then the old workers have never stopped.
        One at a time: who asks for two at once is refused the second.
        """
        if self._coming is not None:
            raise SetupError("a reload is under way already; wait for it")
        old = self._generation
        new = self._coming = Generation(old.number + 1, plan or old.plan)
        try:
            # As many as there were, before any of those goes: a reload under load must not cost capacity.
            await muster(self, new, is_whole=True, is_strict=False)
            # From here on without a pause: no batch for the new models may reach an old worker.
            self._open_doors(new, instead_of=old)
        except (SetupError, OSError) as error:
            await self._dismiss(new)
            reason = "the server is stopping" if self._is_closed else error
            raise SetupError(f"the reload failed, nothing has changed: {reason}") from error
        except BaseException:
            await self._dismiss(new)
            raise
        finally:
            self._coming = None
        return new.models

    def close(self) -> None:
        """Bring nothing new in any more: a reload that is under way fails, the workers that are there stay."""
        self._is_closed = True
        self._has_tried.set()
        if self._coming is not None:
            for worker in self._of(self._coming):
                worker.child.process.kill()

    def missing(self, generation: Generation) -> list[Role]:
        """Who is to be there and is not."""
        there = [worker.role for worker in self._of(generation) if worker.is_there]
        beside = [role for role in generation.beside if role not in there]
        return [Role.WORKER] * (generation.wanted - there.count(Role.WORKER)) + beside

    def _of(self, generation: Generation) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.generation is generation]

    def _open_doors(self, generation: Generation, instead_of: Generation | None = None) -> None:
        self._on_models(generation.models)
        self._generation = generation
        if instead_of is not None:
            instead_of.is_leaving = True
            for worker in self._of(instead_of):
                worker.retire(self._dispatch)
        generation.doors.set()
        for worker in self._of(generation):
            worker.come_up(self._dispatch)

    async def _dismiss(self, generation: Generation) -> None:
        """End workers that never took a batch."""
        generation.is_leaving = True
        children = [worker.child for worker in self._of(generation)]
        for child in children:
            child.process.kill()
        await asyncio.gather(*(child.reap() for child in children))

    async def stop(self) -> None:
        """Ask every worker to leave and wait for it; who does not leave within two seconds is killed."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        children = [worker.child for worker in self._workers.values()]
        for worker in self._workers.values():
            if worker.is_up:
                worker.child.send(messages.Stop())
            else:
                worker.child.process.kill()  # it is loading, and would not hear before that is done
        await asyncio.gather(*(child.reap(patience_s=2.0) for child in children))
        await asyncio.to_thread(self._outputs.close)

    def kill(self) -> None:
        """End every worker now, running batches or not."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.child.process.kill()

    def describe(self) -> list[dict[str, int | bool | str]]:
        """The workers as people and pages see them."""
        return [
            {**worker.describe(), "memory_bytes": memory_of(worker.child.process.pid)}
            for worker in self._workers.values()
        ]

    @property
    def progress(self) -> str:
        """How far a worker is that is preparing; empty if none says so."""
        children = [worker.child for worker in self._workers.values()]
        return next((child.progress for child in children if child.progress and not child.ready.done()), "")

    def usage(self) -> dict[str, tuple[float, float]]:
        """Resident bytes of each worker, and its seconds of processor time, by its number."""
        pids = {str(number): worker.child.process.pid for number, worker in self._workers.items()}
        return {number: (float(memory_of(pid)), cpu_s_of(pid)) for number, pid in pids.items()}

    async def spawn(self, generation: Generation, *, role: Role, instead_of: Worker | None = None) -> Worker:
        """Start one more process, which loads and waits at its generation's door; raises `OSError`.

        `instead_of` is one that it is to take over from.
        """
        if self._is_stopping or (self._is_closed and generation is self._coming):
            raise SetupError("the server is stopping")
        plan = generation.plan
        is_worker = role is Role.WORKER
        max_slots = plan.most_slots if is_worker else 1
        threads = plan.slot_threads if is_worker else plan.threads_for(1)
        # Who may feed a GPU runs level with the gateway; what turns out to compute on cores lowers itself.
        niceness = _NICENESS_BESIDE.get(role, 0 if plan.gpus else messages.NICENESS)
        gpu = instead_of.child.gpu if instead_of is not None else None
        if gpu is None and plan.gpus and is_worker:
            taken = [other.child.gpu for other in self._of(generation) if other.is_there]
            gpu = plan.gpu_for(taken, generation.models)
        beside = [worker.device_bytes for worker in self._workers.values() if worker.is_up and worker.child.gpu == gpu]
        load = messages.Load(plan, max_slots, threads, niceness, role, max(beside, default=0), generation.fetched)
        load = replace(load, is_first=not generation.doors.is_set())
        child = Child(self._next_number, load, self._outputs.numbers, gpu, self.early if is_worker else None)
        worker = Worker(child, generation, role)
        worker.is_spare = instead_of is not None
        worker.child.on_measures = lambda rows: self._events.emit(HandlersMeasured(rows))
        self._next_number += 1
        self._workers[worker.child.number] = worker
        self._tell_strain()
        try:
            await worker.child.start()
        except BaseException:  # also for who is cancelled meanwhile
            del self._workers[worker.child.number]
            self._tell_strain()
            raise
        self._keep(self._watch(worker))
        return worker

    def _tell_strain(self) -> None:
        """Processes that load are what takes cores from the gateway."""
        self._dispatch.strain(is_on=any(not worker.child.ready.done() for worker in self._workers.values()))

    async def _watch(self, worker: Worker) -> None:
        """See one worker through its life, and replace it if it dies unasked."""
        child, failure = worker.child, ""
        try:
            ready = await child.ready
        except SetupError as error:
            if self._is_started and not worker.generation.is_leaving:
                log.error("worker %d cannot load: %s", child.number, error)
            failure = f" and could not load: {error}"
        finally:
            self._tell_strain()
        try:
            if not failure:
                await self._open(worker, ready)
        except OSError as error:
            log.error("worker %d cannot be heard: %s", child.number, error)
            child.process.kill()
        worker.connected.set()
        code = await child.gone()
        del self._workers[child.number]
        if worker.slots:
            worker.is_up = False  # if the sockets have not told yet
            self._dispatch.slots_down(worker.slots, worker.loss(code))
        for slot in worker.slots:
            slot.close()
        if not worker.generation.doors.is_set():
            return  # its generation has never taken a batch: who musters it sees that somebody is missing
        was_asked = self._is_stopping or worker.is_leaving or worker.is_spare
        self._events.emit(WorkerDown(child.number, child.process.pid, code, was_asked))
        if was_asked or worker.generation.is_leaving:
            return
        lived_s = self._clock.now() - worker.since if worker.since else 0.0
        role = worker.role
        # The pause is for what cannot start, or does not stay. What a batch has killed was well: others need the next.
        is_well = lived_s > _STEADY_S or worker.items > 0
        self._quick_deaths[role] = 0 if is_well else self._quick_deaths[role] + 1
        delay_s = min(backoff_s(self._quick_deaths[role]), _AT_WORK_BACKOFF_S if worker.at_work() else _LAST_BACKOFF_S)
        if role is Role.WORKER:
            self.trouble = f"worker {child.number} {_how(code)}{failure}; the next one starts in {delay_s:.1f} s"
        self._fill(worker.generation, role, delay_s=delay_s)

    def _fill(self, generation: Generation, role: Role, *, delay_s: float = 0.0) -> None:
        """Start as many as are missing, but for those that are about to be started."""
        missing = self.missing(generation).count(role) - generation.awaited[role]
        for _ in range(missing):
            generation.awaited[role] += 1
            self._keep(self._replace(delay_s, generation, role))

    async def _recycle(self) -> None:
        """Replace workers that have passed a limit, one at a time; the new one is warm before the old one goes."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for worker in self._of(self._generation):
                why = None if not worker.is_up else self._recycling.why(worker, self._clock.now())
                if why is None or worker.role is not Role.WORKER or worker.is_leaving or self._coming is not None:
                    continue
                log.info("recycling a worker", extra={"worker": worker.child.number, "why": why})
                if not await self._take_over(worker):
                    await asyncio.sleep(_AFTER_FAILURE_S)
                break

    async def _take_over(self, old: Worker) -> bool:
        try:
            fresh = await self.spawn(old.generation, role=Role.WORKER, instead_of=old)
            await fresh.child.ready
        except (SetupError, OSError) as error:
            if old.generation.is_leaving:
                return True  # a reload has sent both away
            log.error("worker %d is not recycled, no other can be started: %s", old.child.number, error)
            return False
        await fresh.connected.wait()
        fresh.come_up(self._dispatch)
        fresh.is_spare = False
        if fresh.is_up:  # it may be lost already, or a reload may have sent both away
            # The old one may have died meanwhile: then it has an heir already, and two would be one too many.
            (old if old.child.number in self._workers else fresh).retire(self._dispatch)
        return True

    async def _open(self, worker: Worker, ready: messages.Ready) -> None:
        worker.device_bytes = ready.device_bytes
        sockets = worker.child.take_sockets(ready.slots)
        if worker.role is Role.WORKER:
            worker.open_slots(ready.slots, self._dispatch)
            for slot, sock in zip(worker.slots, sockets, strict=True):
                await slot.open(sock)
        worker.connected.set()
        # No request is let in before whoever may have to stand in for the model is there.
        await _either(worker.generation.doors.wait(), worker.child.gone())
        if not worker.generation.doors.is_set() or worker.is_leaving:
            return  # it died, or was dismissed, at the door
        if worker.role is not Role.WORKER:
            worker.since = self._clock.now()
            worker.at_work = seen(worker.child.process.pid, ready.at_work)
            await self._beside[worker.role].open(sockets[0], worker.child.process.kill, worker.at_work)
            worker.is_up = True
            return
        worker.since = self._clock.now()
        worker.come_up(self._dispatch)
        if not worker.is_up:
            return
        self.trouble = ""
        self._events.emit(WorkerUp(worker.child.number, worker.child.process.pid, ready.slots))

    async def _replace(self, delay_s: float, generation: Generation, role: Role) -> None:
        if delay_s:
            log.warning("starting a new worker", extra={"in_s": round(delay_s, 2)})
            await asyncio.sleep(delay_s)
        while not (self._is_stopping or generation.is_leaving):
            generation.awaited[role] -= 1  # it is there from the next line on
            try:
                await self.spawn(generation, role=role)
                return
            except OSError as error:
                generation.awaited[role] += 1
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


def _how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


async def _either(*waits: Coroutine[None, None, object]) -> None:
    """Return when one of these is over."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
