"""Drift: what is usual, what is an alarm, and what counts at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from tests.live.serving import eventually

from timebound.cli import main
from timebound.events import Answered, Events, Refused
from timebound.observe.detector import Detector, of_labels, of_numbers
from timebound.observe.drift import Drift
from timebound.observe.journal import Journal
from timebound.observe.reference import LEAST, mark
from timebound.observe.streams import Streams
from timebound.observe.told import Told
from timebound.types import ModelInfo, Outcome, Quality, Question, Result, Source

NOON = 1_795_000_000.0
SURE = np.random.default_rng(1).beta(6.0, 0.7, 10_000).round(4)
NAMES = [f"label {number}" for number in range(40)]


def first_alarm(detector: Detector, values: Any) -> int | None:
    """After how many of these values there is one."""
    return next((number for number, value in enumerate(values, 1) if detector.add(value)), None)


def learned(seed: int) -> tuple[Detector, np.random.Generator]:
    random = np.random.default_rng(seed)
    reference = of_numbers(random.choice(SURE, LEAST).tolist())
    assert reference is not None
    return Detector(reference), random


def test_nothing_is_said_of_numbers_that_do_not_change() -> None:
    for seed in range(3):
        detector, random = learned(seed)
        assert first_alarm(detector, random.choice(SURE, 20_000).tolist()) is None
        assert detector.psi < 0.2


@pytest.mark.parametrize("direction", [-1, 1])
def test_half_a_standard_deviation_is_found_within_500_answers(direction: int) -> None:
    scores = (SURE - SURE.mean()) / SURE.std()
    found = []
    for seed in range(20):
        detector, random = learned(seed)
        assert first_alarm(detector, random.choice(SURE, 1_000).tolist()) is None
        tilt = 0.5 * direction  # sharper where the tail is short, so that the mean moves by half a deviation
        while abs((weights(scores, tilt) * scores).sum()) < 0.5:
            tilt *= 1.02
        found.append(first_alarm(detector, random.choice(SURE, 500, p=weights(scores, tilt)).tolist()))
    assert sum(number is not None for number in found) >= 19


def weights(scores: Any, tilt: float) -> Any:
    """Chances that make high or low scores likelier."""
    chances = np.exp(tilt * scores)
    return chances / chances.sum()


def test_a_label_that_becomes_frequent_and_one_that_goes_are_found() -> None:
    random = np.random.default_rng(2)
    usual = np.array([0.3, *([0.7 / 39] * 39)])
    reference = of_labels([mark(name) for name in random.choice(NAMES, LEAST, p=usual)])
    assert reference is not None
    for share in (0.53, 0.1):
        detector = Detector(reference)
        now = np.array([share, *([(1 - share) / 39] * 39)])
        assert first_alarm(detector, [mark(name) for name in random.choice(NAMES, 20_000, p=usual)]) is None
        assert first_alarm(detector, [mark(name) for name in random.choice(NAMES, 500, p=now)]) is not None


def test_labels_never_seen_before_are_found() -> None:
    reference = of_labels([mark(name) for name in np.random.default_rng(3).choice(NAMES, LEAST)])
    assert reference is not None
    values = [mark(f"new {number}" if number % 10 == 0 else NAMES[number % 40]) for number in range(500)]
    assert first_alarm(Detector(reference), values) is not None


def test_values_that_say_nothing_make_no_reference() -> None:
    assert of_numbers([1.0] * LEAST) is None
    assert of_labels([mark(f"a sentence, number {number}") for number in range(LEAST)]) is None


def test_what_a_detector_holds_does_not_grow() -> None:
    detector, random = learned(4)
    sizes = set()
    for _ in range(3):
        first_alarm(detector, random.choice(SURE, 2_000).tolist())
        sizes.add(sum(len(each) for each in (detector._capitals, detector._recent, detector._tilts)))
    assert len(sizes) == 1


class World:
    """A server's listener without its thread, and a model `m` whose answers it hears."""

    def __init__(self, file: Path | None = None) -> None:
        self.events = Events()
        models = {"m": ModelInfo(name="m", has_size=True)}
        self.drift = Drift(self.events, models=models, wall=lambda: NOON, file=file)
        self.random = np.random.default_rng(5)
        self._since = 0

    def answer(self, sure: float = 0.9, label: str = "a", size: float = 3.0, model: str = "m", **result: Any) -> None:
        question = Question("r", model, b"{}", 100.0, 100.5, size=size)
        outcome = Outcome(msgspec.json.encode({"label": label, "confidence": sure}))
        self.events.emit(Answered(question, Result(outcome, **{"version": "1", **result}), 200, 0.02))
        self._since += 1
        if self._since % 20 == 0:
            self.drift.take_in()

    def many(self, count: int, *, less: float = 0.0, **result: Any) -> None:
        for sure in (self.random.choice(SURE, count) - less).clip(0.0, 1.0).tolist():
            label, size = ("a", "b")[int(self.random.random() < 0.3)], float(self.random.integers(1, 40))
            self.answer(sure, label, size, **result)
        self.drift.take_in()

    def signals(self) -> dict[str, dict[str, Any]]:
        (version,) = self.drift.report()
        return {one["signal"]: one for one in version["signals"]}


def test_a_change_is_told_on_the_page_in_the_metrics_and_once() -> None:
    world = World()
    world.many(LEAST + 2_000)
    assert {one["state"] for one in world.signals().values()} == {"watching"}
    world.many(1_500, less=0.2)
    told = world.signals()["confidence"]
    assert (told["state"], told["what"], told["alarms"]) == ("drifting", "lower", 1)
    assert told["now"] < told["usual"] - 0.1
    assert world.signals()["size"]["state"] == "watching"
    assert [alarm.signal for alarm in world.drift.news()] == ["confidence"]
    assert list(world.drift.news()) == []
    registry = CollectorRegistry()
    registry.register(world.drift)
    text = generate_latest(registry).decode()
    assert 'timebound_drift_alarms_total{model="m",signal="confidence",version="1"} 1.0' in text
    assert 'timebound_drifting{model="m",signal="label",version="1"} 0.0' in text
    world.many(3_000)
    assert world.signals()["confidence"]["state"] == "watching"


def test_what_is_not_a_full_computed_answer_does_not_count() -> None:
    world = World()
    world.many(LEAST)
    for result in (
        {"source": Source.STORED},
        {"source": Source.JOINED},
        {"quality": Quality.FALLBACK, "reason": "too_long"},
        {"quality": Quality.PARTIAL, "reason": "member_failed"},
    ):
        world.many(100, less=0.5, **result)
    assert {one["seen"] for one in world.signals().values()} == {0}


def test_the_small_ones_that_an_overload_lets_through_are_no_change() -> None:
    world = World()
    world.many(LEAST + 1_000)
    for _ in range(1_500):
        world.answer(0.99, "a", 1.0)
        world.events.emit(Refused("m", "x", "overloaded", 429, 0.001, question=Question("x", "m", b"", 0.0, 0.5)))
    (version,) = world.drift.report()
    assert version["is_paused"]
    assert version["passed_over"] > 1_400
    world.many(1_500)
    (version,) = world.drift.report()
    assert not version["is_paused"]
    assert {one["alarms"] for one in version["signals"]} == {0}


def test_without_its_guard_the_same_overload_would_be_an_alarm() -> None:
    world = World()
    world.many(LEAST + 1_000)
    for _ in range(1_500):
        world.answer(0.99, "a", 1.0)
    assert {one["state"] for one in world.signals().values()} == {"drifting"}


def test_what_is_usual_is_kept_over_restarts_and_says_no_label(tmp_path: Path) -> None:
    file = tmp_path / "app.drift.json"
    first = World(file)
    first.many(LEAST)
    first.answer(label="a secret label")
    first.drift.start()
    first.drift.stop()
    assert b"secret" not in file.read_bytes()
    second = World(file)
    second.drift.start()
    second.drift.stop()
    assert {one["state"] for one in second.signals().values()} == {"watching"}
    second.many(1_500, less=0.2)
    assert second.signals()["confidence"]["state"] == "drifting"


@pytest.mark.parametrize(
    "text", ["[", "{}", '[{"model":"m","version":"1","signal":"size","reference":{"shares":[1.0]}}]']
)
def test_a_file_that_cannot_be_true_is_not_believed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "app.drift.json"
    file.write_text(text)
    world = World(file)
    world.drift.start()
    world.drift.stop()
    assert world.drift.report() == []


def test_an_answer_that_cannot_be_looked_at_does_not_end_the_looking(caplog: pytest.LogCaptureFixture) -> None:
    def reader(model: str, version: str, told: Told) -> None:
        if told.label == "odd":
            raise ValueError("odd")

    world = World()
    world.drift = Drift(world.events, models={}, wall=lambda: NOON, reader=reader)
    world.drift.start()
    world.answer(label="odd")
    eventually(lambda: "an answer could not be looked at" in caplog.text, "it is told")
    world.answer(label="plain")
    eventually(world.drift.report, "the next one is looked at")
    world.drift.stop()


def test_something_else_is_usual_when_the_operator_says_so() -> None:
    world = World()
    world.many(LEAST)
    assert not world.drift.learn("other")
    assert world.drift.learn("m")
    world.many(20, less=0.2)
    assert {one["state"] for one in world.signals().values()} == {"learning"}


def test_a_versions_answers_are_compared_with_its_own() -> None:
    world = World()
    world.many(LEAST, version="1")
    world.many(LEAST + 500, less=0.2, version="2")
    assert all(one["alarms"] == 0 for version in world.drift.report() for one in version["signals"])
    assert [version["version"] for version in world.drift.report()] == ["1", "2"]


def test_of_many_versions_the_last_are_kept() -> None:
    streams = Streams()
    for number in range(100):
        streams.add("m", str(number), {"size": 1.0}, NOON)
    assert len(streams.report()) == 64


def test_a_history_is_gone_through_as_the_server_would_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(6)
    sure = np.concatenate([random.choice(SURE, LEAST + 500), random.choice(SURE, 500) - 0.2])
    events, kept = Events(), tmp_path / "kept"
    journal = Journal(
        events,
        kept,
        most_bytes=10**9,
        most_s=1e6,
        models={"m": ModelInfo(name="m")},
        now=lambda: 0.0,
        wall=lambda: NOON,
    )
    journal.start()
    for number, value in enumerate(sure.tolist()):
        outcome = Outcome(msgspec.json.encode({"label": NAMES[number % 7], "confidence": max(0.0, value)}))
        events.emit(Answered(Question(str(number), "m", b"{}", 0.0, 0.5), Result(outcome, version="3"), 200, 0.02))
    journal.stop()
    assert main(["drift", str(kept)]) == 0
    told = capsys.readouterr().out
    assert "m 3: confidence is lower" in told
    assert main(["drift", str(kept), "--json", "--model", "other"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == {"versions": [], "alarms": []}
    assert main(["drift", str(tmp_path / "nowhere")]) == 2
