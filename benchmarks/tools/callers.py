"""Callers of an ASGI app who give up at any moment, and what is left of the app afterwards."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timebound as tb
from timebound.guest import Guest

_AT_ONCE = 50
_STEADY = 8
"""Callers who wait for their answers meanwhile."""


@dataclass(frozen=True)
class Left:
    """What a thousand callers left behind."""

    exceptions: list[Any]
    """Raised where nobody was to catch them: in the event loop, and so in the dispatcher."""
    workers_lost: int
    waiting: int
    statuses: set[int] = field(default_factory=set)
    """Of those who waited."""


async def ask(app: Guest, body: bytes, path: str = "/inference", **more: Any) -> int:
    """The status of one POST, as an ASGI server has it: the whole body at once, then silence."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)  # a place to be cancelled at
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "client": ("127.0.0.1", 5), **more}
    await app(scope, receive, send)
    return int(sent[0]["status"])


async def give_up_on(target: Path, path: str, item: Callable[[int], Any], callers: int) -> Left:
    """So many callers of `tb.asgi(target)` who give up, under load; `item` makes the body of each."""
    chance = random.Random(7)
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))

    async def give_up(app: Guest, number: int) -> None:
        task = asyncio.create_task(ask(app, json.dumps(item(number)).encode(), path))
        for _ in range(chance.randrange(12)):  # before it starts, while it waits, while its answer is sent
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.003)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def wait_for_answers(app: Guest, place: int, stop: asyncio.Event) -> set[int]:
        statuses, number = set(), callers + place
        while not stop.is_set():
            number += _STEADY
            statuses.add(await ask(app, json.dumps(item(number)).encode(), path))
        return statuses

    async with tb.asgi(target, workers=2, profiles="none") as app:
        while app.gateway.supervisor.workers_up < 2:
            await asyncio.sleep(0.01)
        before = {worker["pid"] for worker in app.gateway.supervisor.describe()}
        stop = asyncio.Event()
        others = [asyncio.create_task(wait_for_answers(app, place, stop)) for place in range(_STEADY)]
        for start in range(0, callers, _AT_ONCE):
            await asyncio.gather(*(give_up(app, start + place) for place in range(_AT_ONCE)))
        stop.set()
        statuses = set().union(*await asyncio.gather(*others))
        after = {worker["pid"] for worker in app.gateway.supervisor.describe()}
        return Left(troubles, len(before - after), app.gateway.requests.waiting, statuses)
