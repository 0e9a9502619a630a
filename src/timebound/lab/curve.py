"""How long batches take: run as a program in a process of its own, it finds a point per batch size."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from timebound.app_settings import read_here
from timebound.clock import Clock, MonotonicClock
from timebound.devices.base import run_on_device
from timebound.errors import SetupError
from timebound.importer import describe
from timebound.lab.load.processes import pss_mib
from timebound.lab.memory import drop_members
from timebound.model import Model, body_schema, example_body, name_of
from timebound.schema import sample
from timebound.target import home_of, load_models
from timebound.types import ENGINES, OWN, ModelInfo, Timing
from timebound.workers.members import open_runner
from timebound.workers.runner import Runner
from timebound.workers.warmup import warm_up

LEAST_RUNS = 3
MOST_RUNS = 200


class Point(msgspec.Struct, frozen=True):
    """One batch size: median seconds of the whole batch and of its stages, and the process's memory after it."""

    batch: int
    seconds: float
    timing: Timing
    memory_mib: float
    members_mib: dict[str, float] = {}
    """With the last point: what each member of an ensemble takes."""

    @property
    def per_item_s(self) -> float:
        """Seconds that each item of the batch costs."""
        return self.seconds / self.batch


class Facts(msgspec.Struct, frozen=True):
    """What must be known of a model to choose settings for it."""

    info: ModelInfo
    body: bytes
    """One that it can answer."""
    engine: str = ""
    """What its ONNX files run on if nobody says otherwise, or `own` for networks of torch; empty if it has none of
    these, or more than one."""
    engines: list[str] = []
    """What they could run on, or how the networks could compute; empty if there is nothing to choose."""


def measure(runner: Runner, body: bytes, batch: int, budget_s: float, clock: Clock) -> Point:
    """Run a batch of equal bodies over and over for about `budget_s`."""
    timings: list[Timing] = []
    totals: list[float] = []
    began = clock.now()
    while len(totals) < LEAST_RUNS or (clock.now() - began < budget_s and len(totals) < MOST_RUNS):
        start = clock.now()
        report = runner.run([body] * batch)
        totals.append(clock.now() - start)
        if report is None or any(outcome.code for outcome in report.outcomes):
            if runner.model.example is None:
                cure = "give it an example (in an archive: `timebound: {example: FILE}` of model-config.yaml)"
                raise SetupError(f"{runner.name} does not answer a made-up body; {cure}")
            raise SetupError(
                f"{runner.name} cannot answer its own example in a batch of {batch}; fix `example` or `infer`"
            )
        timings.append(report.timing)
    stages = {
        name: median(getattr(timing, name) for timing in timings) for name in ("prepare_s", "infer_s", "finish_s")
    }
    return Point(batch, median(totals), Timing(**stages), pss_mib(os.getpid()))


def sizes(most: int) -> list[int]:
    """1, 2, 4 ... up to the most there may be."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def body_of(model: Model) -> bytes:
    """A body that the model can answer: its example, or one made up from its schema."""
    if model.example is not None:
        return example_body(model.example)
    schema = body_schema(type(model))
    return example_body(sample(schema) if schema is not None else b"")


def chosen_model(target: Path, name: str, *, threads: int, engine: str) -> Model:
    """The model of this name, or the only one, loaded; on an engine or in a mode of torch, unless that is empty."""
    chosen = {option_of(engine): {name: engine}} if engine else {}
    load = partial(load_models, target, threads=threads, app=read_here(home_of(target)))
    loaded = run_on_device(lambda: load(engines=chosen.get("engine"), modes=chosen.get("torch")))
    models = {name_of(type(model)): model for model in loaded if name in ("", name_of(type(model)))}
    if len(models) != 1:
        raise SetupError(f"choose one model with --model: {', '.join(models) or f'none is called {name}'}")
    return models.popitem()[1]


def option_of(engine: str) -> str:
    """The option of `timebound serve` that takes it."""
    return "engine" if engine in ENGINES else "torch"


def engines_of(model: Model) -> tuple[str, list[str]]:
    """What the model's files run on, and what all of them that leave a choice could run on; or modes of torch."""
    free = [backend for backend in model.opened if backend.engines]
    networks = [each.choices for each in getattr(model.net, "members", [model.net]) if hasattr(each, "choices")]
    if networks and not free:
        shared = [mode for mode in networks[0] if all(mode in each for each in networks)]
        return (OWN, shared) if len(shared) > 1 else ("", [])
    own = {str(backend.engine) for backend in free}
    if len(own) != 1:
        return "", []
    return own.pop(), [each for each in free[0].engines if all(each in backend.engines for backend in free)]


def run_as_program(find: Callable[..., Iterable[msgspec.Struct]], *arguments: str) -> int:
    """Write what is found to the file that the last argument names, as it comes, or say why not; the exit status."""
    *own, file = arguments
    try:
        for found in find(*own):
            os.write(int(file), msgspec.json.encode(found) + b"\n")
    except Exception as error:
        said = str(error) if isinstance(error, SetupError) else describe(error)
        print(said, file=sys.stderr)  # noqa: T201 - this is a program; its parent reads it
        return 2
    return 0


def main(target: str, name: str, threads: str, budget_s: str, engine: str) -> Iterator[msgspec.Struct]:
    """The facts of the model, then a point for each batch size until one takes longer than the deadline."""
    clock = MonotonicClock()
    model = chosen_model(Path(target), name, threads=int(threads), engine=engine)
    runner = open_runner(model, clock)
    info = run_on_device(partial(warm_up, runner, clock))
    body = body_of(model)
    yield Facts(msgspec.structs.replace(info, samples=[]), body, *engines_of(model))
    for batch in sizes(info.max_batch):
        point = measure(runner, body, batch, float(budget_s), clock)
        if point.seconds > info.deadline_s or batch == info.max_batch:
            yield msgspec.structs.replace(point, members_mib=run_on_device(partial(drop_members, model.net)))
            return
        yield point


if __name__ == "__main__":
    sys.exit(run_as_program(main, *sys.argv[1:]))
