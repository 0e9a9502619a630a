"""The signals, from events and a scheduler that says what a test wants."""

from __future__ import annotations

import logging

import pytest

from timebound.events import Answered, BatchFinished, Events, Refused
from timebound.observe.signals import Look, Signals
from timebound.types import Outcome, Quality, Question, Result, Source


class World:
    """A server of two slots to which 1.2 slot seconds of work come in each second."""

    def __init__(self, *, is_told: bool = False) -> None:
        self.events = Events()
        self.now = 100.0
        self.signals = Signals(self.events, lambda now: Look(1.2 * (now - 100.0), 0.35, 2), is_told=is_told)
        self.pass_seconds(0)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds or 1):
            self.now += 1.0 if seconds else 0.0
            self.signals.tick(self.now)

    def answer(
        self,
        seconds: float = 0.1,
        quality: Quality = Quality.FULL,
        code: str = "",
        status: int = 200,
        source: Source = Source.COMPUTED,
    ) -> None:
        question = Question("id", "m", b"", 0.0, 0.25)
        self.events.emit(Answered(question, Result(Outcome(b"", code), quality, source), status, seconds))

    def refuse(self, code: str, status: int) -> None:
        self.events.emit(Refused("m", "id", code, status, 0.1))


def test_an_idle_server_is_in_time() -> None:
    events = Events()
    signals = Signals(events, lambda now: Look(0.0, 0.0, 0), is_told=False)
    for now in (1.0, 2.0):
        signals.tick(now)
    assert signals.read() == {"load_ratio": 0.0, "in_time_ratio": 1.0, "utilisation": 0.0, "queue_seconds": 0.0,
                              "failed_ratio": 0.0, "store_hit_ratio": 0.0}  # fmt: skip


def test_load_is_work_that_comes_per_second_and_slot() -> None:
    world = World()
    for _ in range(30):
        world.events.emit(BatchFinished("m", 1, 0.5, 0.5, 1, "complete"))
        world.pass_seconds(1)
    found = world.signals.read()
    assert (found["load_ratio"], found["utilisation"], found["queue_seconds"]) == (0.6, 0.25, 0.35)


def test_what_a_model_did_not_answer_in_time_and_was_ours_to_answer_lowers_the_share() -> None:
    world = World()
    for _ in range(6):
        world.answer()
    world.answer(seconds=0.3)
    world.answer(quality=Quality.FALLBACK)
    world.refuse("overloaded", 429)
    world.refuse("deadline_missed", 504)
    for code, status in (("bad_input", 422), ("rate_limited", 429), ("client_busy", 429), ("unauthorized", 401)):
        world.refuse(code, status)
    world.answer(code="bad_input", status=422)
    world.pass_seconds(1)
    assert world.signals.read()["in_time_ratio"] == 0.6


def test_failed_is_what_got_an_error_that_was_ours_and_a_fallback_or_a_late_answer_is_none() -> None:
    world = World()
    for _ in range(5):
        world.answer()
    world.answer(seconds=0.3)
    world.answer(quality=Quality.FALLBACK)
    world.answer(code="model_failed", status=500)
    world.refuse("overloaded", 429)
    world.refuse("deadline_missed", 504)
    for code, status in (("bad_input", 422), ("rate_limited", 429), ("unauthorized", 401)):
        world.refuse(code, status)
    world.pass_seconds(1)
    assert world.signals.read()["failed_ratio"] == 0.3


def test_a_hit_is_an_answer_that_was_kept_or_in_work_already() -> None:
    world = World()
    for source in (Source.COMPUTED, Source.COMPUTED, Source.STORED, Source.JOINED, Source.STORED):
        world.answer(source=source)
    world.answer(code="model_failed", status=500, source=Source.JOINED)  # no answer
    world.refuse("overloaded", 429)
    world.pass_seconds(1)
    assert world.signals.read()["store_hit_ratio"] == 0.6


def test_what_was_more_than_ten_seconds_ago_is_forgotten() -> None:
    world = World()
    world.refuse("deadline_missed", 504)
    world.pass_seconds(1)
    assert world.signals.read()["in_time_ratio"] == 0.0
    world.pass_seconds(10)
    assert world.signals.read()["in_time_ratio"] == 1.0


def test_they_are_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "timebound.server"):
        World(is_told=True).pass_seconds(35)
    assert [record.getMessage() for record in caplog.records] == ["signals"] * 3
    assert vars(caplog.records[0])["load_ratio"] == 0.6
