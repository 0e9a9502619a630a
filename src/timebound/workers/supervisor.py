"""Starts worker processes, watches them, replaces those that die or are to be reloaded, stops them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.events import Events, WorkerDown, WorkerUp
from timebound.types import ModelInfo
from timebound.workers import messages
from timebound.workers.child import Child
from timebound.workers.crew import Generation, Recycling, Worker, memory_of
from timebound.workers.slots import Dispatch
from timebound.workers.understudy import Understudy

log = logging.getLogger("timebound.workers")

_NICENESS = 10
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_STEADY_S = 5.0
"""A worker that was up for this long ends a row of quick deaths."""

_LOOK_EVERY_S = 1.0
_AFTER_FAILURE_S = 60.0
"""Nothing is recycled for so long after a replacement could not be loaded."""
_NEVER = Recycling()


class Supervisor:
    """Keeps `plan` true: as many workers as it asks for, each loaded and warmed up before it takes batches.

    If a model has a `fallback` or a `size` of its own, one more process is kept: the understudy.
    """

    def __init__(
        self,
        plan: messages.WorkerPlan,
        *,
        dispatch: Dispatch,
        understudy: Understudy,
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
        self._understudy = understudy
        self._on_models = on_models
        self._events = events
        self._clock = clock
        self._workers: dict[int, Worker] = {}
        self._next_number = 1
        self._quick_deaths = {True: 0, False: 0}  # of the understudy, and of the others
        self._is_started = False
        self._is_reloading = False
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

    @property
    def plan(self) -> messages.WorkerPlan:
        """What workers run now."""
        return self._generation.plan

    async def start(self) -> None:
        """Return when the first worker is up, and the understudy if one is needed; raise `SetupError` if not."""
        generation = self._generation
        slots = await self._load_first(generation)
        await asyncio.gather(*(worker.connected.wait() for worker in self._of(generation)))
        self._is_started = True
        self._open_doors(generation)
        for _ in range(generation.plan.wanted(slots) - 1):
            self._keep(self._replace(0.0, generation, is_understudy=False))
        if self._recycling.is_on:
            self._keep(self._recycle())

    async def reload(self, plan: messages.WorkerPlan | None = None) -> list[ModelInfo]:
        """Load the target again in new workers, and let the old ones go when those are up; what was loaded.

        Raises `SetupError` if it cannot be loaded or answers no warm-up run; then the old workers have never stopped.
        """
        if self._is_reloading:
            raise SetupError("a reload is under way already; wait for it")
        self._is_reloading = True
        old = self._generation
        new = Generation(old.number + 1, plan or old.plan)
        try:
            slots = await self._load_first(new)
            # As many as there were, before any of those goes: a reload under load must not cost capacity.
            others = [await self._spawn(new, is_understudy=False) for _ in range(new.plan.wanted(slots) - 1)]
            await asyncio.gather(*(worker.child.ready for worker in others))
        except (SetupError, OSError) as error:
            await self._dismiss(new)
            raise SetupError(f"the reload failed, nothing has changed: {error}") from error
        except BaseException:
            await self._dismiss(new)
            raise
        finally:
            self._is_reloading = False
        await asyncio.gather(*(worker.connected.wait() for worker in self._of(new)))
        # From here on without a pause: no batch for the new models may reach an old worker.
        self._generation = new
        old.is_leaving = True
        for worker in self._of(old):
            worker.retire(self._dispatch)
        self._open_doors(new)
        return new.models

    def _of(self, generation: Generation) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.generation is generation]

    def _open_doors(self, generation: Generation) -> None:
        self._on_models(generation.models)
        generation.doors.set()
        for worker in self._of(generation):
            worker.come_up(self._dispatch)

    async def _load_first(self, generation: Generation) -> int:
        """Load one worker, and the understudy if one is needed; how many slots such a worker has."""
        ready = await self._start_first(generation, is_understudy=False)
        generation.models = ready.models
        for doubt in ready.doubts:
            log.warning("%s", doubt)
        if strange := generation.plan.strangers(ready.models):
            there = ", ".join(sorted({info.base for info in ready.models}))
            trouble = f"the option engine names a model {strange[0]!r}, but there is only: {there}"
            if not self._is_started:
                await self._dismiss(generation)
                raise SetupError(f"{trouble}; name one of these, or none (--print-config says where it is from)")
            log.warning("%s", trouble)  # it was there when the server started
        if any(info.has_fallback or info.has_size for info in ready.models):
            await self._start_first(generation, is_understudy=True)
        return ready.slots

    async def _start_first(self, generation: Generation, *, is_understudy: bool) -> messages.Ready:
        child = (await self._spawn(generation, is_understudy=is_understudy)).child
        try:
            return await child.ready
        except SetupError:
            await self._dismiss(generation)
            raise

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

    def kill(self) -> None:
        """End every worker now, running batches or not."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.child.process.kill()

    def describe(self) -> list[dict[str, int | bool]]:
        """The workers as people and pages see them."""
        return [
            {**worker.describe(), "memory_bytes": memory_of(worker.child.process.pid)}
            for worker in self._workers.values()
        ]

    def memory(self) -> dict[str, float]:
        """Resident bytes of each worker, by its number."""
        return {str(number): float(memory_of(worker.child.process.pid)) for number, worker in self._workers.items()}

    async def _spawn(self, generation: Generation, *, is_understudy: bool, is_spare: bool = False) -> Worker:
        plan = generation.plan
        max_slots = 1 if is_understudy else plan.slots or max(1, plan.cores // (plan.workers or 1))
        threads = plan.threads or max(1, plan.cores // ((plan.workers or 1) * max_slots))
        # The understudy's work is short and urgent: it runs level with the gateway.
        load = messages.Load(plan, max_slots, threads, 0 if is_understudy else _NICENESS, is_understudy)
        worker = Worker(Child(self._next_number, load), generation, is_understudy=is_understudy)
        worker.is_spare = is_spare
        self._next_number += 1
        self._workers[worker.child.number] = worker
        self._tell_strain()
        try:
            await worker.child.start()
        except OSError:
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
        if not failure:
            await self._open(worker, ready)
        worker.connected.set()
        code = await child.gone()
        del self._workers[child.number]
        if worker.slots:
            worker.is_up = False  # if the sockets have not told yet
            self._dispatch.slots_down(worker.slots, worker.loss(code))
        for slot in worker.slots:
            slot.close()
        if not worker.generation.doors.is_set():
            return  # its generation never took a batch: `start` or `reload` tells why
        was_asked = self._is_stopping or worker.is_leaving or worker.is_spare
        self._events.emit(WorkerDown(child.number, child.process.pid, code, was_asked))
        if was_asked or worker.generation.is_leaving:
            return
        lived_s = self._clock.now() - worker.since if worker.since else 0.0
        role = worker.is_understudy
        self._quick_deaths[role] = 0 if lived_s > _STEADY_S else self._quick_deaths[role] + 1
        delay_s = backoff_s(self._quick_deaths[role])
        if not role:
            self.trouble = f"worker {child.number} {_how(code)}{failure}; the next one starts in {delay_s:.1f} s"
        self._keep(self._replace(delay_s, worker.generation, is_understudy=role))

    async def _recycle(self) -> None:
        """Replace workers that have passed a limit, one at a time; the new one is warm before the old one goes."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for worker in self._of(self._generation):
                why = None if not worker.is_up else self._recycling.why(worker, self._clock.now())
                if why is None or worker.is_understudy or worker.is_leaving or self._is_reloading:
                    continue
                log.info("recycling a worker", extra={"worker": worker.child.number, "why": why})
                if not await self._take_over(worker):
                    await asyncio.sleep(_AFTER_FAILURE_S)
                break

    async def _take_over(self, old: Worker) -> bool:
        try:
            fresh = await self._spawn(old.generation, is_understudy=False, is_spare=True)
            await fresh.child.ready
        except (SetupError, OSError) as error:
            log.error("worker %d is not recycled, no other can be started: %s", old.child.number, error)
            return False
        await fresh.connected.wait()
        fresh.come_up(self._dispatch)
        # A reload may have sent both away meanwhile, and the old one may have died: then the new one is its heir twice.
        if fresh.is_up and old.child.number in self._workers and not old.generation.is_leaving:
            old.retire(self._dispatch)
        elif fresh.is_up and not old.generation.is_leaving:
            fresh.retire(self._dispatch)
        fresh.is_spare = False
        return True

    async def _open(self, worker: Worker, ready: messages.Ready) -> None:
        sockets = worker.child.take_sockets(ready.slots)
        if not worker.is_understudy:
            worker.open_slots(ready.slots, self._dispatch)
            for slot, sock in zip(worker.slots, sockets, strict=True):
                await slot.open(sock)
        worker.connected.set()
        # No request is let in before whoever may have to stand in for the model is there.
        await _either(worker.generation.doors.wait(), worker.child.gone())
        if not worker.generation.doors.is_set():
            return  # it died, or was dismissed, at the door
        if worker.is_understudy:
            worker.since = self._clock.now()
            await self._understudy.open(sockets[0], worker.child.process.kill)
            worker.is_up = True
            return
        worker.since, self.trouble = self._clock.now(), ""
        worker.come_up(self._dispatch)
        self._events.emit(WorkerUp(worker.child.number, worker.child.process.pid, ready.slots))

    async def _replace(self, delay_s: float, generation: Generation, *, is_understudy: bool) -> None:
        if delay_s:
            log.warning("starting a new worker", extra={"in_s": round(delay_s, 2)})
            await asyncio.sleep(delay_s)
        while not (self._is_stopping or generation.is_leaving):
            try:
                await self._spawn(generation, is_understudy=is_understudy)
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
