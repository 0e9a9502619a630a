"""Runs a target's models on their examples, as a program in a process of its own, and tells each thing seen.

What the user's code does meanwhile is heard through Python's audit hooks: connections, name look-ups and new processes,
each with the stage it happened in. Libraries that open sockets in C are not heard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from timebound.app_settings import read_here
from timebound.clock import Clock, MonotonicClock
from timebound.devices.base import current_device, run_on_device
from timebound.errors import SetupError
from timebound.importer import describe
from timebound.lab.curve import Point, body_of, measure, run_as_program
from timebound.lab.load.processes import pss_mib
from timebound.model import Model, doubtful_attributes, name_of
from timebound.target import home_of, load_models
from timebound.types import ModelInfo
from timebound.workers.hand import why_unable
from timebound.workers.members import open_runner
from timebound.workers.preparation import has_prepare, learn
from timebound.workers.runner import Runner
from timebound.workers.warmup import warm_up

SIZES = (1, 2, 8)
_HEARD = {
    "socket.connect": "connects",
    "socket.getaddrinfo": "looks up a name",
    "subprocess.Popen": "starts a process",
}


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """All models are loaded."""

    seconds: float
    memory_mib: float
    models: list[str]
    torch: str = ""
    """Its version, if it was imported."""
    device: dict[str, str] = {}
    """What the networks' device says of itself and the libraries that run it."""
    free_bytes: int | None = None
    """Memory left on it, the weights loaded."""


class Seen(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One model, after its runs."""

    info: ModelInfo
    has_example: bool
    body_bytes: int
    points: list[Point]
    habits: list[str] = []
    """What its stages did that waits for others: "prepare connects to ..."."""
    why_no_hands: str = ""
    """Why no other process could prepare for it."""
    fallback_s: float | None = None
    fallback_error: str = ""
    doubts: list[str] = []
    """What looks like a misspelt method or option."""


class Stage(msgspec.Struct, frozen=True, tag=True):
    """What is about to be done; the last one said names what a process died of."""

    name: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot be served, and why."""

    why: str


Word = Loaded | Seen | Stage | Failed


class Habits:
    """Hears what the user's code does; `stage` says where, and nothing is heard outside of stages."""

    def __init__(self) -> None:
        self.stage = ""
        self.heard: dict[str, None] = {}
        sys.addaudithook(self._hear)

    def listen_to(self, model: Model) -> None:
        """Have the model's stages say when they run."""
        for name in ("prepare", "infer", "finish"):
            setattr(model, name, partial(self._staged, name, getattr(model, name)))

    def _staged(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        before, self.stage = self.stage, name
        try:
            return method(*arguments)
        finally:
            self.stage = before

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.stage and event in _HEARD:
            stage, self.stage = self.stage, ""  # what is done to describe it is not the user's doing
            self.heard[f"{stage} {_HEARD[event]}{_whereto(event, arguments)}"] = None
            self.stage = stage


def _whereto(event: str, arguments: tuple[Any, ...]) -> str:
    if event == "socket.connect":
        address = arguments[1]
        return f" to {':'.join(map(str, address[:2]))}" if isinstance(address, tuple) else f" to {address!r}"
    if event == "socket.getaddrinfo":
        return f" ({arguments[0]})"
    return ""


def main(target: str, threads: str, budget_s: str, chosen: str, device: str) -> Iterator[Word]:
    """Load, and run each model."""
    clock = MonotonicClock()
    try:
        yield Stage("load()")
        start = clock.now()
        app = read_here(home_of(Path(target)))
        named = msgspec.json.decode(chosen)
        models = run_on_device(
            partial(load_models, Path(target), threads=int(threads), **named, device=device, app=app)
        )
        yield _loaded(models, clock.now() - start)
        habits = Habits()
        for model in models:
            yield from _try(model, habits, float(budget_s), clock)
    except Exception as error:
        yield Failed(str(error) if isinstance(error, SetupError) else describe(error))


def _loaded(models: list[Model], seconds: float) -> Loaded:
    found, torch = current_device(), getattr(sys.modules.get("torch"), "__version__", "")
    return Loaded(
        seconds,
        pss_mib(os.getpid()),
        [name_of(type(model)) for model in models],
        torch=str(torch),
        device={name: str(value) for name, value in found.facts().items()} if found is not None else {},
        free_bytes=found.free_bytes() if found is not None else None,
    )


def _try(model: Model, habits: Habits, budget_s: float, clock: Clock) -> Iterator[Word]:
    runner = open_runner(model, clock)
    yield Stage(f"{runner.name}'s first run")
    habits.heard.clear()
    habits.listen_to(model)  # from the first run on: a connection that is opened then and kept is waited for ever after
    info = run_on_device(partial(warm_up, runner, clock))
    body = body_of(model)
    points = []
    for size in [size for size in SIZES if size <= info.max_batch]:
        yield Stage(f"{runner.name} on a batch of {size}")
        points.append(measure(runner, body, size, budget_s, clock))
    fallback_s, fallback_error = None, ""
    if info.has_fallback:
        yield Stage(f"{runner.name}.fallback()")
        fallback_s, fallback_error = _fall_back(model, runner, body, clock)
    yield Seen(
        info=msgspec.structs.replace(info, samples=[]),
        has_example=model.example is not None,
        body_bytes=len(body),
        points=points,
        habits=list(habits.heard),
        why_no_hands=_why_no_hands(model, runner, clock),
        fallback_s=fallback_s,
        fallback_error=fallback_error,
        doubts=doubtful_attributes(type(model)),
    )


def _why_no_hands(model: Model, runner: Runner, clock: Clock) -> str:
    if not has_prepare(model):
        return ""
    lesson = learn(runner, type(model).max_batch, clock)
    if isinstance(lesson, str):
        return lesson
    bare = type(model)()
    bare.equip()
    return why_unable(Runner(bare, clock), lesson.form, lesson.body)


def _fall_back(model: Model, runner: Runner, body: bytes, clock: Clock) -> tuple[float, str]:
    """Seconds of the fallback, and what is wrong with it; on a model that is not loaded, as in a server."""
    bare = type(model)()
    bare.equip()
    start = clock.now()
    try:
        runner.encode(bare.fallback(runner.decode(body)))
    except Exception as error:
        return clock.now() - start, describe(error)
    return clock.now() - start, ""


if __name__ == "__main__":
    sys.exit(run_as_program(main, *sys.argv[1:]))
