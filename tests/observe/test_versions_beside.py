"""Two versions side by side: what differs, and how surely."""

from __future__ import annotations

from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from timebound.cli import main
from timebound.events import Answered, Compared, Events, Refused
from timebound.observe.filter import filter_of
from timebound.observe.history import History
from timebound.observe.journal import Journal
from timebound.observe.sides import Side, differences, share
from timebound.observe.told import Told
from timebound.observe.versions import Versions
from timebound.types import ModelInfo, Outcome, Question, Result, Source

NOON = 1_795_000_000.0


def side(random: np.random.Generator, *, late: float = 0.1, seconds: float = 0.02, sure: float = 0.8) -> Side:
    """A version that answered 400 requests."""
    made = Side(due=400, in_time=int((random.random(400) > late).sum()))
    for took, value in zip(random.lognormal(log(seconds), 0.5, 400), random.normal(sure, 0.1, 400), strict=True):
        made.took(took)
        made.told("ab"[int(random.random() < 0.3)], value)
    return made


def test_the_true_difference_is_in_the_interval_in_about_95_of_100_cases() -> None:
    random, hits = np.random.default_rng(1), np.zeros(4)
    for _ in range(200):
        off = differences(side(random), side(random, late=0.2, seconds=0.024, sure=0.82))
        assert off.in_time is not None
        assert off.time is not None
        assert off.confidence is not None
        hits += [
            off.in_time.low <= -0.1 <= off.in_time.high,
            off.time.low <= 0.2 <= off.time.high,
            off.confidence.low <= 0.02 <= off.confidence.high,
            off.label is not None and not off.label[1].is_clear,
        ]
    assert all(0.9 <= part <= 1.0 for part in hits / 200), hits / 200


def test_a_share_is_never_surer_than_its_count() -> None:
    assert share(10, 10).low < 0.75
    assert share(1000, 1000).low > 0.995
    assert share(0, 10).high > 0.25


def test_too_few_say_nothing() -> None:
    assert differences(Side(due=9, in_time=9), Side(due=9)) == (None, None, None, None, None)


def test_the_label_that_differs_most_is_named() -> None:
    one, two = Side(), Side()
    for number in range(1000):
        one.told("abcdefgh"[number % 8], None)
        two.told("abcdefgh"[number % 8] if number % 4 else "h", None)
    off = differences(one, two)
    assert off.label is not None
    assert (off.label[0], off.label[1].is_clear) == ("h", True)


def test_what_a_side_holds_does_not_grow() -> None:
    made = Side()
    for number in range(1000):
        made.told(f"label {number}", 0.5)
    assert len(made.labels) == 201


class World:
    """Two versions of `m`, half of the requests each, and a third that gets copies."""

    def __init__(self) -> None:
        self.events, self.wall = Events(), NOON
        infos = [ModelInfo(name="m", version="1"), ModelInfo(name="m@2", version="2")]
        self.lot = SimpleNamespace(ends=[0.5, 1.0], infos=infos, shadows=[ModelInfo(name="m@3", version="3")])
        self.versions = Versions(self.events, lambda: {"m": self.lot}, lambda: self.wall)
        self.versions.tick()

    def answer(self, version: str, seconds: float, **result: Any) -> None:
        question = Question("r", "m", b"{}", 100.0, 100.5, version=version)
        self.events.emit(Answered(question, Result(Outcome(b"{}"), version=version, **result), 200, seconds))

    def found(self) -> dict[str, Any]:
        (told,) = self.versions.report()
        return told


def test_each_version_has_its_own_figures_since_the_requests_were_divided() -> None:
    world = World()
    for number in range(50):
        world.answer("1", 0.02)
        world.answer("2", 0.02 if number % 2 else 0.6)
        world.answer("2", 0.001, source=Source.STORED)
        world.versions.told("m", "2", Told("a", 0.5))
    refused = Question("x", "m", b"{}", 100.0, 100.5, version="2")
    world.events.emit(Refused("m", "x", "overloaded", 429, 0.01, question=refused))
    told = world.found()
    assert (told["base"], told["shares"], told["since"]) == ("1", {"1": 0.5, "2": 0.5}, NOON)
    assert told["versions"]["1"]["in_time"]["value"] == 1.0
    assert (told["versions"]["2"]["requests"], told["versions"]["2"]["confidence"]) == (51, 0.5)
    assert told["differences"]["2"]["in_time"]["high"] < 0
    assert told["differences"]["2"]["time"]["low"] > 0
    world.wall += 10
    world.versions.tick()
    assert world.found()["since"] == NOON, "the division is the same"
    world.lot.ends = [0.9, 1.0]
    world.versions.tick()
    assert (world.found()["since"], world.found()["versions"]["2"]["requests"]) == (NOON + 10, 0)


def test_copies_are_compared_one_by_one() -> None:
    world = World()
    for number in range(40):
        sent, copy = ({"label": "a", "confidence": 0.8}, {"label": "ab"[number % 4 == 0], "confidence": 0.7})
        outcomes = [Outcome(msgspec.json.encode(answer)) for answer in (sent, copy)]
        world.events.emit(Compared("m", "3", "differs", *outcomes))
    world.events.emit(Compared("m", "3", "not_computed"))
    told = world.found()["copies"]["3"]
    assert (told["copies"], told["not_computed"], told["same"]["value"]) == (40, 1, 0.0)
    assert told["same_label"]["value"] == 0.75
    assert told["confidence"]["value"] == pytest.approx(-0.1)


def test_a_history_says_how_versions_differ_and_which_was_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, kept = Events(), tmp_path / "kept"
    models = {"m": ModelInfo(name="m")}
    journal = Journal(events, kept, most_bytes=10**9, most_s=1e6, models=models, now=lambda: 0.0, wall=lambda: NOON)
    journal.start()
    for number in range(200):
        version = "12"[number % 2]
        outcome = Outcome(msgspec.json.encode({"label": "a", "confidence": 0.9 if version == "1" else 0.6}))
        question = Question(str(number), "m", b"{}", 0.0, 0.5, f"k{number}", version=version)
        events.emit(Answered(question, Result(outcome, version=version), 200, 0.02))
        journal.say(("m", f"k{number}", "right" if version == "1" or number % 4 == 1 else "wrong", "", NOON, ""))
    journal.stop()
    sides = History(kept).sides(filter_of({"model": "m"}))
    assert [(name, one.due, one.right, one.wrong) for name, one in sides.items()] == [
        ("1", 100, 100, 0),
        ("2", 100, 50, 50),
    ]
    assert main(["history", "compare", str(kept), "m", "--base", "1"]) == 0
    told = capsys.readouterr().out
    assert "right answers: -50.00%" in told
    assert "confidence: -0.3000 (-0.3000 to -0.3000), differs" in told
    assert main(["history", "compare", str(kept), "other"]) == 2
    assert main(["history", "compare", str(kept), "m", "--base", "7"]) == 2
