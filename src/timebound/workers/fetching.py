"""The fetching process: runs `fetch` of the user's classes in one event loop, for hundreds of requests at once.

It imports the classes and loads no weights, as an understudy does. A request waits here for a page, a row or a feature
and holds no slot meanwhile. What it gets goes on to the worker (`fetched.py`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from timebound.clock import Clock, MonotonicClock
from timebound.errors import DeadlineMissed, SetupError
from timebound.importer import describe
from timebound.model import Model, example_body
from timebound.target import sentence, understudies
from timebound.types import Outcome
from timebound.workers import messages, wire
from timebound.workers.at_work import Note
from timebound.workers.failures import failure, item_failure
from timebound.workers.fetched import Parcels
from timebound.workers.fetcher import CANCEL
from timebound.workers.runner import CAUGHT, Runner

log = logging.getLogger("timebound.fetcher")

Found = TypeVar("Found")

MOST_AT_ONCE = 1000
"""Requests that fetch at the same time; the others wait for one of these."""
_REHEARSAL_S = 10.0
"""For the example, at start."""
_LOOK_EVERY_S, _HELD_UP_S, _TELL_EVERY_S = 0.05, 0.1, 60.0
"""How often it is looked if the loop runs, how late is too late, and how often that is told."""
_FAREWELL_S = 2.0
"""For what is fetched when the process is asked to leave."""


class Fetch:
    """`fetch` of one model."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.runner = Runner(model, clock)
        self._parcels = Parcels(type(model))
        self._limit_s = type(model).fetch_limit
        self._has_size = callable(model.size)

    async def run(self, body: bytes) -> tuple[Outcome, float]:
        """What was fetched with the body, and its size; an outcome with a code if that failed. Ends if cancelled."""
        task = asyncio.current_task()
        try:
            parcel, size = await self.get(body)
        except CAUGHT as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return item_failure(self.runner.name, error, "fetch", body), 1.0
        return Outcome(parcel), size

    async def get(self, body: bytes) -> tuple[bytes, float]:
        """The same, raising what the user's code raises."""
        model, limit = self.runner.model, asyncio.timeout(self._limit_s)
        request = self.runner.decode(body)
        try:
            async with limit:
                fetched = await model.fetch(request)
        except TimeoutError:
            if limit.expired():
                raise DeadlineMissed(f"fetch took longer than its limit of {self._limit_s:g} s") from None
            raise
        size = float(model.size(fetched)) if self._has_size else self._length(fetched)
        return self._parcels.pack(fetched, body), size

    def _length(self, fetched: object) -> float:
        """By the field that `size` names, if there is one."""
        field = self.runner.model.size
        if not isinstance(field, str):
            return 1.0
        value = fetched.get(field) if isinstance(fetched, Mapping) else getattr(fetched, field, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return float(len(value)) if isinstance(value, Sequence) else 1.0


def has_fetch(model: Model) -> bool:
    """Whether its requests fetch something before they are prepared."""
    return model.fetch is not None


def fetch_here(model: Model, bodies: Sequence[bytes], clock: Clock) -> list[Outcome]:
    """Run `fetch` for these in this process, all at once; what a worker gets for each, or its error."""
    fetch = Fetch(model, clock)

    async def run() -> list[Outcome]:
        return [outcome for outcome, _ in await asyncio.gather(*map(fetch.run, bodies))]

    return _in_a_loop(run())


def _in_a_loop(wanted: Coroutine[Any, Any, Found]) -> Found:
    """In a thread of its own: whoever asks may be in an event loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wanted).result()


def example_parcel(model: Model, body: bytes, clock: Clock) -> bytes:
    """What a worker gets for the example; raises `SetupError` if it cannot be fetched."""
    cls = type(model)
    if cls.example_fetched is not None:
        return Parcels(cls).pack(cls.example_fetched, body)
    return _in_a_loop(_rehearsed(Fetch(model, clock), body))


async def _rehearsed(fetch: Fetch, body: bytes) -> bytes:
    """Find out at start what would otherwise fail when it is needed."""
    try:
        parcel, _ = await asyncio.wait_for(fetch.get(body), _REHEARSAL_S)
    except CAUGHT as error:
        why = describe(error) if not isinstance(error, TimeoutError) else f"no answer came within {_REHEARSAL_S:g} s"
        raise SetupError(
            f"{type(fetch.runner.model).__name__}: fetch() failed on the example: {why}; it runs without load(), on "
            "what equip() sets. If what it asks may be away at start, set `example_fetched` to what it gives"
        ) from error
    return parcel


def serve_fetches(control: socket.socket, calls: socket.socket, load: messages.Load) -> int:
    """Serve until the gateway closes its end or says stop."""
    try:
        return asyncio.run(_serve(control, calls, load))
    except Exception as error:
        wire.write_frame(control, messages.Failed(sentence(error), traceback.format_exc()))
        return 2


async def _serve(control: socket.socket, calls: socket.socket, load: messages.Load) -> int:
    plan, clock = load.plan, MonotonicClock()
    models = [model for model in understudies(Path(plan.target), plan.versions, plan.app) if has_fetch(model)]
    fetches = {fetch.runner.name: fetch for fetch in (Fetch(model, clock) for model in models)}
    pulse = asyncio.create_task(_pulse(clock))
    await asyncio.sleep(0)  # it is to see what the rehearsal does
    if load.is_first:
        for fetch in fetches.values():
            cls = type(fetch.runner.model)
            if cls.example_fetched is None:
                await _rehearsed(fetch, example_body(cls.example))
    note = Note()
    desk = _Desk(fetches, note)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_hear, args=(control, loop, stop), name="control", daemon=True).start()
    wire.write_frame(control, messages.Ready([], 1, at_work=note.file))
    await desk.open(calls)
    await stop.wait()
    pulse.cancel()
    await desk.finish()
    return 0


async def _pulse(clock: Clock) -> None:
    """Tell of code that holds up the loop, and with it every request that fetches."""
    told_at = -_TELL_EVERY_S
    while True:
        start = clock.now()
        await asyncio.sleep(_LOOK_EVERY_S)
        late_s = clock.now() - start - _LOOK_EVERY_S
        if late_s > _HELD_UP_S and start - told_at > _TELL_EVERY_S:
            told_at = start
            log.warning(
                "fetch() held up all others for %.2f s; let it wait with `await` and a client made for that, such as "
                "httpx.AsyncClient or aiohttp, not with requests or time.sleep",
                late_s,
            )


def _hear(control: socket.socket, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    wire.read_frame(control)
    loop.call_soon_threadsafe(stop.set)


class _Desk(wire.Channel):
    """Takes the gateway's calls."""

    def __init__(self, fetches: Mapping[str, Fetch], note: Note) -> None:
        super().__init__()
        self._note = note
        self._fetches = fetches
        self._tasks: dict[int, asyncio.Task[tuple[Outcome, float]]] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._server = asyncio.current_task()

    def receive(self, head: messages.Head, body: memoryview) -> None:
        assert isinstance(head, messages.Errand)
        for call in head.calls:
            if call.duty == CANCEL:
                if (task := self._tasks.get(call.number)) is not None:
                    task.cancel()
            elif not call.number:  # it is asked if it is there
                self.send(messages.ErrandDone(0, Outcome(b""), 1.0))
            else:
                task = self._tasks[call.number] = asyncio.get_running_loop().create_task(self._run(call))
                # Not at its end: what is called off before it began has none, and the gateway counts on an answer.
                task.add_done_callback(partial(self._answer, call.number))

    async def _run(self, call: messages.Call) -> tuple[Outcome, float]:
        async with self._room:
            return await self._note.stepping(call.number, self._fetches[call.model].run(call.body))

    def _answer(self, number: int, task: asyncio.Task[tuple[Outcome, float]]) -> None:
        del self._tasks[number]
        if self._server is None or self._server.done() or self._server.cancelling():
            return  # the loop ends, which cancels all: the gateway asks the next process
        cancelled = failure("model_failed", "fetch was cancelled by its own code"), 1.0
        self.send(messages.ErrandDone(number, *(cancelled if task.cancelled() else task.result())))

    async def finish(self) -> None:
        """Let what is fetched now come to its end, for a while."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=_FAREWELL_S)
