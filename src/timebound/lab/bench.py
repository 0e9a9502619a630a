"""A bench run: one level of load after another on one server, and what each amounted to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import uvloop

from timebound.clock import MonotonicClock
from timebound.lab.load import schedule
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.attempts import Asker, Manners
from timebound.lab.load.client import Address, Client
from timebound.lab.load.health import Health, raise_file_limit, undisturbed, warnings
from timebound.lab.load.loops import ClosedLoop, Loop, OpenLoop
from timebound.lab.load.requests import Requests
from timebound.lab.load.schedule import Phase
from timebound.lab.load.tally import Tally

PROGRESS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One level of load. With a rate or a trace the loop is open, else `clients` drive a closed one."""

    rate: float | None = None
    arrivals: str = "poisson"
    trace: Path | None = None
    clients: int = 1
    think_s: tuple[float, float] = (0.0, 0.0)
    requests: int | None = None
    is_shared_out: bool = False
    seconds: float | None = 10.0
    warm_up_s: float = 0.0
    timeout_s: float = 30.0
    resends: int = 0
    deadline_s: float = 0.0  # 0: not decided yet
    connections: int = 2000
    realtime: bool = False
    seed: int = 1

    @property
    def is_open(self) -> bool:
        """Whether requests come by the clock."""
        return self.rate is not None or self.trace is not None

    @property
    def load(self) -> float:
        """What a sweep varies: requests per second, or clients."""
        return self.rate if self.rate is not None else float(self.clients)

    @property
    def title(self) -> str:
        """The load in words."""
        if self.trace is not None:
            return f"trace {self.trace.name}"
        if self.rate is not None:
            return f"{self.rate:g}/s {self.arrivals}"
        if self.think_s[1]:
            return f"{self.clients} users"
        return f"{self.clients} clients" if self.clients > 1 else "1 client"


@dataclass(frozen=True)
class Level:
    """What one level of load amounted to."""

    plan: Plan
    figures: dict[str, float]
    details: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    is_interrupted: bool = False


Tell = Callable[[Plan, float, int, Tally], None]
"""Hears how a level stands: after so many seconds so many requests are under way."""


def run(plans: list[Plan], address: Address, requests: Requests, tell: Tell | None = None) -> list[Level]:
    """Run the levels in turn. Ctrl-C ends the one that runs; what it saw until then is its result, and the last."""
    raise_file_limit()
    levels: list[Level] = []
    for plan in plans:
        with undisturbed(plan.realtime):
            levels.append(uvloop.run(_level(plan, address, requests, tell)))
        if levels[-1].is_interrupted:
            break
    return levels


async def _level(plan: Plan, address: Address, requests: Requests, tell: Tell | None) -> Level:
    clock, running = MonotonicClock(), asyncio.get_running_loop()
    alarm = Alarm(running, clock)
    client = Client(address, clock, most_connections=plan.connections)
    asker = Asker(client, Manners(plan.timeout_s, plan.resends), alarm, clock)
    loop, seconds = loop_of(plan)
    began = clock.now()
    tally = Tally(plan.deadline_s, began + plan.warm_up_s, began + seconds)
    health = Health(alarm, clock)
    if tell is not None:
        alarm.every(PROGRESS_S, lambda due: tell(plan, due - began, asker.under_way, tally))
    is_whole = await _until_signal(loop.run(asker, requests.take, tally.add))
    left = asker.stop()
    if not is_whole:  # rates are of the time that there was
        tally.end(clock.now())
    figures = {
        **tally.figures(),
        **health.figures(tally.lags),
        "unfinished": left,
        "connections": client.connections,
        "stale_connections": client.stale,
        "held_back": client.held_back,
    }
    alarm.close()
    await client.close()
    found = warnings(figures, plan.is_open) if tally.requests else []
    return Level(plan, figures, tally.details(), found, not is_whole)


def loop_of(plan: Plan) -> tuple[Loop, float]:
    """The loop of a plan, and how many seconds it sends; infinite if it ends after so many requests."""
    if plan.trace is not None:
        traced = schedule.trace(plan.trace)
        return OpenLoop(iter(traced)), traced[-1] or 1.0
    if plan.rate is not None:
        seconds = plan.warm_up_s + (plan.seconds if plan.seconds is not None else (plan.requests or 1) / plan.rate)
        phases = schedule.bursts(plan.rate, seconds) if plan.arrivals == "bursts" else [Phase(plan.rate, seconds)]
        times = schedule.even(phases) if plan.arrivals == "constant" else schedule.poisson(phases, plan.seed)
        return OpenLoop(times), seconds
    seconds = inf if plan.seconds is None else plan.warm_up_s + plan.seconds
    requests = inf if plan.requests is None else plan.requests
    loop = ClosedLoop(
        plan.clients, requests=requests, seconds=seconds, is_shared_out=plan.is_shared_out, think_s=plan.think_s,
        seed=plan.seed,
    )  # fmt: skip
    # With a number of requests the run may end before its time does.
    return loop, seconds if requests == inf else inf


async def _until_signal(work: Any) -> bool:
    """Do the work, or stop it at SIGINT or SIGTERM; says whether it was done."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError, ValueError):  # not the main thread
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
    return not task.cancelled()
