"""Does the drift detector keep quiet, and does it find a change soon? On what example applications answered.

`drift_answers.npz` has the confidence, label and size of answers to inputs that no training saw. They are drawn at
random, with repetition: the first 5,000 are what is usual. Then come

- 200,000 more of the same, in which every alarm is a false one (`false_alarms` of all signals of an application, the
  most of all applications);
- a hundred times for each signal, 1,000 more of the same and 500 in which the mean is half a standard deviation lower
  or higher (`found_share`, the lowest of all). *drawn*: answers with a low or high value are drawn more often, so that
  each is still a real one; *moved*: each value is moved, and a confidence stays within 0 and 1. Of labels, the share of
  the most frequent one moves by half the deviation of what is 1 for it and 0 for others;
- answers of other origin: tweets to airlines after those of a contest, people's scans after typefaces;
- a server that is asked for twice what it can do, where the short posts are answered and the long ones refused
  (`overload_alarms`).
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import Traffic, answers_right, free_port
from benchmarks.tools.openloop import drive
from benchmarks.tools.processes import Server
from timebound.lab.load.attempts import End, Exchange
from timebound.lab.load.schedule import Phase
from timebound.observe.detector import Detector, of_labels, of_numbers
from timebound.observe.reference import LEAST, mark

ANSWERS = Path(__file__).with_name("drift_answers.npz")
APPS = ("sentiment", "handwriting", "insects", "correction")
OTHERS = (("sentiment", "airline"), ("handwriting", "writers"))
SIGNALS = ("confidence", "label", "size")
WITHIN = 500
BEFORE = 1_000
TOKEN = "drift"
CAPACITY = 1_000.0
"""What the server of the overload does in a second."""

BARS = (
    Bar("false_alarms", at_most=2),
    Bar("found_share", at_least=0.95),
    *zero("overload_alarms"),
    Bar("overload_passed_over", at_least=1),
)

EXAMPLES = """\
examples:
  python benchmarks/policy/drift.py --quick
  python benchmarks/policy/drift.py --json out.json
"""


def streams() -> dict[tuple[str, str], Any]:
    """By application and signal, the values of all its answers."""
    file = np.load(ANSWERS)
    found: dict[tuple[str, str], Any] = {}
    for app in (*APPS, *(other for _, other in OTHERS)):
        for signal in SIGNALS:
            if f"{app}_{signal}" in file:
                values = file[f"{app}_{signal}"].astype(float)
                found[app, signal] = values / 10_000 if signal == "confidence" else values
    return found


def detector(usual: Any, signal: str) -> Detector:
    """One that knows these values as usual."""
    reference = of_labels(marks(usual)) if signal == "label" else of_numbers(usual.tolist())
    assert reference is not None
    return Detector(reference)


def marks(values: Any) -> list[str]:
    """Labels as the detector takes them."""
    return [mark(str(int(value))) for value in values]


def plain(values: Any, signal: str) -> list[Any]:
    """Values as the detector takes them."""
    return marks(values) if signal == "label" else list(values.tolist())


def alarms(values: Any, signal: str, count: int, chance: np.random.Generator) -> int:
    """How many there are in so many values of which nothing has changed."""
    found = detector(chance.choice(values, LEAST), signal)
    return sum(found.add(value) for value in plain(chance.choice(values, count), signal))


Draw = Callable[[np.random.Generator, int], Any]


def changes(values: Any, signal: str) -> dict[str, Draw]:
    """By name, what draws values after a change."""
    if signal == "label":
        return {name: partial(_drawn, values, _of_label(values, sign)) for name, sign in (("rarer", -1), ("more", 1))}
    found = {
        f"drawn {name}": partial(_drawn, values, _tilted(values, sign)) for name, sign in (("lower", -1), ("higher", 1))
    }
    sign = -1 if signal == "confidence" else 1
    return {**found, f"moved {'lower' if sign < 0 else 'higher'}": partial(_moved, values, sign, signal)}


def _drawn(values: Any, weights: Any, chance: np.random.Generator, count: int) -> Any:
    return chance.choice(values, count, p=weights)


def _moved(values: Any, sign: int, signal: str, chance: np.random.Generator, count: int) -> Any:
    moved = chance.choice(values, count) + 0.5 * sign * values.std()
    return moved.clip(0.0, 1.0) if signal == "confidence" else moved


def _tilted(values: Any, sign: int) -> Any:
    """Weights by which the mean is half a standard deviation off, and nothing else is preferred."""
    scores = sign * (values - values.mean()) / values.std()
    low, high = 0.0, 50.0
    for _ in range(60):
        tilt = (low + high) / 2
        weights = np.exp(tilt * (scores - scores.max()))
        weights /= weights.sum()
        low, high = (tilt, high) if weights @ scores < 0.5 else (low, tilt)
    return weights


def _of_label(values: Any, sign: int) -> Any:
    """Weights by which the most frequent label is so much more or less frequent."""
    labels, counts = np.unique(values, return_counts=True)
    is_it = values == labels[counts.argmax()]
    share = is_it.mean()
    wanted = min(0.99, max(0.0, share + 0.5 * sign * np.sqrt(share * (1 - share))))
    return np.where(is_it, wanted / is_it.sum(), (1 - wanted) / (~is_it).sum())


def found_after(values: Any, signal: str, draw: Draw, chance: np.random.Generator, most: int) -> int | None:
    """After how many changed values there is an alarm; None if not within so many, or too early."""
    found = detector(chance.choice(values, LEAST), signal)
    if any(found.add(value) for value in plain(chance.choice(values, BEFORE), signal)):
        return None
    changed = plain(draw(chance, most), signal)
    return next((number for number, value in enumerate(changed, 1) if found.add(value)), None)


def simulated(count: int, runs: int) -> dict[str, float]:
    """Everything but the server."""
    every, chance, figures = streams(), np.random.default_rng(1), {}
    false: dict[str, int] = {}
    shares = []
    for app in APPS:
        say(app)
        for signal in [signal for signal in SIGNALS if (app, signal) in every]:
            values = every[app, signal]
            false[app] = false.get(app, 0) + alarms(values, signal, count, chance)
            for name, draw in changes(values, signal).items():
                found = [found_after(values, signal, draw, chance, WITHIN) for _ in range(runs)]
                hits = sorted(number for number in found if number is not None)
                shares.append(len(hits) / runs)
                middle = hits[len(hits) // 2] if hits else -1
                print(
                    f"{app:12} {signal:11} {name:13} found in {len(hits):3} of {runs}, after {middle:4} at the median"
                )
        figures[f"false_alarms_{app}"] = float(false[app])
    for app, other in OTHERS:
        for signal in SIGNALS:
            draw = partial(_drawn, every[other, signal], None)
            after = found_after(every[app, signal], signal, draw, chance, 5_000)
            print(f"{other:12} {signal:11} in place of {app}: {'not found' if after is None else f'after {after}'}")
    print(f"false alarms in {count:,} answers: {false}")
    return {**figures, "false_alarms": max(false.values()), "found_share": min(shares)}


class Posts(Traffic):
    """Posts of the recorded lengths."""

    def __init__(self, port: int) -> None:
        super().__init__("/predictions/recorded", port)
        self._sizes = np.load(ANSWERS)["sentiment_size"].tolist()
        self._random = random.Random(1)

    def next(self) -> Exchange:
        number = self._random.randrange(len(self._sizes))
        body = json.dumps({"n": number, "text": "x" * self._sizes[number]})
        return Exchange(self._head(len(body)) + body.encode(), lambda reply: b"confidence" in reply.body)


def overload(serve_args: Sequence[str]) -> dict[str, float]:
    """A server that learns at half of what it can do, and then is asked for twice as much."""
    traffic = Posts(free_port())
    command = [*timebound("recorded", serve_args), "--admin-token", TOKEN, "--port", str(traffic.port)]
    command += ["--workers", "1", "--slots", "1", "--profiles", "none"]
    with Server("recorded answers", command, {}, partial(answers_right, traffic)):
        say("learning")
        for _ in range(20):
            drive(traffic, [Phase(CAPACITY / 2, 5.0)], seed=1)
            if all(one["state"] == "watching" for one in _told(traffic.port)["signals"]):
                break
        say("twice as much as can be done")
        record = drive(traffic, [Phase(CAPACITY / 2, 3.0), Phase(2 * CAPACITY, 10.0), Phase(CAPACITY / 2, 5.0)], seed=2)
        time.sleep(0.5)  # the last answers are looked at
        told = _told(traffic.port)
    answered = sum(question.last.end is End.ANSWERED for question in record.questions)
    print(f"overload: {answered:,} of {len(record.questions):,} answered, {told['passed_over']:,} of them passed over")
    for one in told["signals"]:
        print(f"  {one['signal']:11} {one['seen']:6,} compared, PSI {one['psi']:.3f}, evidence {one['evidence']:.2f}")
    return {
        "overload_alarms": float(sum(one["alarms"] for one in told["signals"])),
        "overload_passed_over": float(told["passed_over"]),
        "overload_answered": answered / len(record.questions),
    }


def _told(port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/v1/live/drift"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)["versions"][0]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and hold the figures to the bars."""
    options = options_parser(__doc__, EXAMPLES).parse_args(arguments)
    count, runs = (50_000, 20) if options.quick else (200_000, 100)
    try:
        figures = finish("drift", lambda: {**simulated(count, runs), **overload(options.serve_args)})
    except Failed as failure:
        return failure.code
    return conclude("drift", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
