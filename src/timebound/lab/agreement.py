"""Whether an engine answers as the reference does: run as a program in a process of its own, it finds one `Agreement`.

Both are asked the same: the model's example and samples, what the user gives, and noisy copies of these until there are
enough. Answers are compared as clients see them. Parts that change when the same output is finished twice, such as a
time or a random number, do not count; numbers with a fraction may differ a little.
"""

from __future__ import annotations

import base64
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from timebound.clock import Clock, MonotonicClock
from timebound.devices.base import run_on_device
from timebound.lab.curve import body_of, chosen_model, run_as_program
from timebound.lab.load.payloads import from_folder, from_lines
from timebound.model import body_schema, example_body
from timebound.types import ENGINES, OWN
from timebound.workers.members import open_runner
from timebound.workers.runner import Runner
from timebound.workers.samples import read_samples
from timebound.workers.warmup import warm_up

REFERENCE = next(iter(ENGINES))
ENOUGH = 64
# Standard deviation of a copy's noise, in units of the input's own.
NOISE = 0.05
BATCH = 8
# Longer than a clock of whole seconds stands still.
CLOCKS_MOVE_S = 1.1


def reference_of(engine: str) -> str:
    """What an engine is compared with, or a mode of torch."""
    return REFERENCE if engine in ENGINES else OWN


Leaves = dict[str, Any]
"""The parts of an answer by their place in it."""


class Agreement(msgspec.Struct, frozen=True):
    """How an engine answered, beside the reference; `difference` is the largest of all outputs, `scale` the largest."""

    inputs: int
    copies: int
    same: int
    difference: float
    scale: float

    @property
    def share(self) -> float:
        """Of equal answers."""
        return self.same / self.inputs


class Question(msgspec.Struct, frozen=True):
    """A request and what `prepare` made of it."""

    request: Any
    item: Any


class Respondent:
    """A model on one engine, or in one mode of torch."""

    def __init__(self, target: Path, name: str, engine: str, clock: Clock) -> None:
        self.runner = open_runner(chosen_model(target, name, threads=1, engine=engine), clock)
        run_on_device(partial(warm_up, self.runner, clock))
        # A size that was made ready before serving: of others nothing is compiled.
        self._batch = 1 << (min(BATCH, type(self.runner.model).max_batch).bit_length() - 1)

    def outputs(self, questions: Sequence[Question]) -> list[Any]:
        """One output per question."""
        parts = [questions[start : start + self._batch] for start in range(0, len(questions), self._batch)]
        return [output for part in parts for output in self.runner.infer([question.item for question in part])]

    def answers(self, questions: Sequence[Question], outputs: Sequence[Any]) -> list[Leaves]:
        """What clients would read."""
        found = []
        for question, output in zip(questions, outputs, strict=True):
            outcome = self.runner.encode(self.runner.model.finish(output, question.request))
            is_json = outcome.media == "application/json"
            found.append(dict(leaves(msgspec.json.decode(outcome.body) if is_json else outcome.body)))
        return found


def ask_for(respondent: Respondent, more: Path | None) -> tuple[list[Question], int]:
    """What both are asked, and how many of these are copies."""
    runner = respondent.runner
    requests = [runner.decode(body) for body in dict.fromkeys(_bodies(runner, more))]
    asked = [Question(request, runner.model.prepare(request)) for request in requests]
    if not any(_can_vary(question.item) for question in asked):
        return asked, 0
    random = np.random.default_rng(1)
    missing = max(0, ENOUGH - len(asked))
    copied = [asked[place % len(asked)] for place in range(missing)]
    return [*asked, *(Question(each.request, _varied(each.item, random)) for each in copied)], missing


def _bodies(runner: Runner, more: Path | None) -> Iterator[bytes]:
    cls = type(runner.model)
    yield body_of(runner.model)
    for sample in read_samples(cls, body_schema(cls)):
        yield base64.b64decode(sample.data) if sample.data is not None else example_body(sample.body)
    if more is not None:
        yield from (payload.body for payload in (from_folder(more) if more.is_dir() else from_lines(more)))


def _can_vary(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(map(_can_vary, item.values()))
    if isinstance(item, tuple):
        return any(map(_can_vary, item))
    return isinstance(item, np.ndarray) and item.dtype.kind == "f"


def _varied(item: Any, random: np.random.Generator) -> Any:
    """The same with noise on its fractions; whole numbers are indices as often as not, and stay."""
    if isinstance(item, Mapping):
        return {name: _varied(part, random) for name, part in item.items()}
    if isinstance(item, tuple):
        return tuple(_varied(part, random) for part in item)
    if not _can_vary(item):
        return item
    spread = float(item.std()) or float(np.abs(item).max(initial=0)) or 1.0
    return (item + random.normal(0, NOISE * spread, item.shape)).astype(item.dtype)


def leaves(answer: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every part of an answer that has no parts, and the sizes of those that have."""
    if isinstance(answer, Mapping | list):
        parts = answer.items() if isinstance(answer, Mapping) else enumerate(answer)
        yield f"{place}#", len(answer)
        for name, part in parts:
            yield from leaves(part, f"{place}/{name}")
    else:
        yield place, answer


def volatile(first: Sequence[Leaves], again: Sequence[Leaves]) -> set[str]:
    """Places whose content changes though the output does not."""
    return {
        place
        for one, other in zip(first, again, strict=True)
        for place in one.keys() | other.keys()
        if one.get(place) != other.get(place)
    }


def is_same(wanted: Leaves, given: Leaves, ignored: set[str], tolerance: float) -> bool:
    """Whether two answers are alike: fractions within `tolerance` of the largest one, all else equal."""
    if wanted.keys() - ignored != given.keys() - ignored:
        return False
    fractions = [abs(value) for value in wanted.values() if isinstance(value, float) and math.isfinite(value)]
    slack = tolerance * max(fractions, default=0.0)
    return all(_alike(wanted[place], given[place], slack) for place in wanted.keys() - ignored)


def _alike(wanted: Any, given: Any, slack: float) -> bool:
    # A fraction may come out whole: 1.0 is written so, but 0.9999 and 1 are alike too.
    if isinstance(wanted, float) and isinstance(given, float | int) and not isinstance(given, bool):
        return wanted == given or abs(wanted - given) <= slack
    return type(wanted) is type(given) and bool(wanted == given)


def gap(wanted: Any, given: Any) -> tuple[float, float]:
    """The largest difference between two outputs, and the largest number of the first."""
    if isinstance(wanted, Mapping):
        pairs = [gap(part, given[name]) for name, part in wanted.items()]
    elif isinstance(wanted, tuple | list):
        pairs = [gap(*parts) for parts in zip(wanted, given, strict=True)]
    else:
        one, other = np.asarray(wanted), np.asarray(given)
        if one.dtype.kind not in "fiub" or one.shape != other.shape:
            return 0.0, 0.0  # texts and the like: their answers are compared, and shapes with them
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        largest = float(apart.max(initial=0.0))
        return math.inf if math.isnan(largest) else largest, float(np.abs(one).max(initial=0))
    return max((each[0] for each in pairs), default=0.0), max((each[1] for each in pairs), default=0.0)


def compare(
    target: Path, name: str, engine: str, *, tolerance: float, more: Path | None = None, clock: Clock
) -> Agreement:
    """Ask the engine and the reference the same; `more` is a folder of bodies or a file of JSON lines."""
    reference, rival = (Respondent(target, name, each, clock) for each in (reference_of(engine), engine))
    asked, copies = ask_for(reference, more)
    wanted, given = reference.outputs(asked), rival.outputs(asked)
    answers = reference.answers(asked, wanted)
    threading.Event().wait(CLOCKS_MOVE_S)
    ignored = volatile(answers, reference.answers(asked, wanted))
    theirs = rival.answers(asked, given)
    same = sum(is_same(one, other, ignored, tolerance) for one, other in zip(answers, theirs, strict=True))
    gaps = [gap(one, other) for one, other in zip(wanted, given, strict=True)]
    return Agreement(len(asked), copies, same, max(each[0] for each in gaps), max(each[1] for each in gaps))


def main(target: str, name: str, engine: str, tolerance: str, more: str) -> Iterator[Agreement]:
    """Compare."""
    samples = Path(more) if more else None
    yield compare(Path(target), name, engine, tolerance=float(tolerance), more=samples, clock=MonotonicClock())


if __name__ == "__main__":
    sys.exit(run_as_program(main, *sys.argv[1:]))
