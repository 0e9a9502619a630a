"""Events: who is told of them, when, and of how many at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from timebound.events import Answered, Events, Reloaded
from timebound.observe.decisions import Decisions
from timebound.observe.tally import Tally
from timebound.types import Outcome, Quality, Question, Result, Run, Source, Trace


def _answered(number: int, *, code: str = "", **result: object) -> Answered:
    question = Question(f"r-{number}", "digits", b"{}", 10.0, 11.0, version="1")
    return Answered(question, Result(Outcome(b"7", code), **result), 200, 0.001 * number)  # type: ignore[arg-type]


class Turn:
    """A turn of an event loop that ends when the test says so."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []
        self.events = Events(self._soon.append)

    def end(self) -> None:
        soon, self._soon[:] = list(self._soon), []
        for call in soon:
            call()


def test_what_is_put_in_one_turn_is_told_together_at_its_end() -> None:
    turn, together, each = Turn(), [], []
    turn.events.on_many(Answered, lambda events: together.append([event.request.id for event in events]))
    turn.events.on(Answered, lambda event: each.append(event.request.id))
    for number in (1, 2):
        turn.events.put(_answered(number))
    assert (together, each) == ([], [])
    turn.end()
    turn.events.put(_answered(3))
    turn.end()
    assert together == [["r-1", "r-2"], ["r-3"]]
    assert each == ["r-1", "r-2", "r-3"]


def test_what_was_put_is_told_before_what_is_emitted_later_and_only_once() -> None:
    turn, told = Turn(), []
    turn.events.on(Answered, lambda event: told.append(event.request.id))
    turn.events.on(Reloaded, lambda event: told.append("reloaded"))
    turn.events.put(_answered(1))
    turn.events.emit(Reloaded(["digits"]))
    turn.events.put(_answered(2))
    turn.end()
    turn.end()
    assert told == ["r-1", "reloaded", "r-2"]


def test_without_an_event_loop_everything_is_told_at_once() -> None:
    events, told = Events(), []
    events.on_many(Answered, lambda some: told.append(len(some)))
    events.put(_answered(1))
    assert told == [1]


def test_a_listener_that_fails_on_one_event_hears_the_next_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    turn, heard, others = Turn(), [], []

    def listener(event: Answered) -> None:
        heard.append(event.request.id)
        raise ValueError("cannot count")

    turn.events.on(Answered, listener)
    turn.events.on_many(Answered, lambda events: others.append(len(events)))
    for number in (1, 2):
        turn.events.put(_answered(number))
    turn.end()
    assert (heard, others) == (["r-1", "r-2"], [2])
    assert caplog.text.count("a listener failed on Answered") == 2


def test_answers_told_together_are_counted_and_decided_as_if_told_one_by_one() -> None:
    rng, turn, one_by_one = random.Random(7), Turn(), Events()
    batch = Run(1, "digits", "0.0", 4, "all_waiting", 10.0, 0.01, 11.0)
    tallies = Tally(turn.events), Tally(one_by_one)
    decisions = Decisions(turn.events, lambda: 12.0), Decisions(one_by_one, lambda: 12.0)
    for number in range(500):
        question = Question(
            f"r-{number}", rng.choice(("digits", "letters")), b"{}", 10.0, 10.5, version=rng.choice(("1", "2")),
            client=rng.choice(("", "", "web")), trace=rng.choice((None, None, Trace("t" * 32, "", "s" * 16, True))),
        )  # fmt: skip
        code = rng.choice(("", "", "", "", "bad_input", "model_failed"))
        quality, source = rng.choice((Quality.FULL, *Quality)), rng.choice((Source.COMPUTED, *Source))
        result = Result(Outcome(b"7", code), quality, source, queue_s=rng.random(), run=batch, version=question.version)
        event = Answered(question, result, {"": 200, "bad_input": 422}.get(code, 500), rng.expovariate(4.0))
        turn.events.put(event)
        one_by_one.emit(event)
        if rng.random() < 0.1:
            turn.end()
    turn.end()
    together, single = tallies
    assert together.kinds == single.kinds
    assert sum(single.kinds.values()) == 500
    assert together.clients == single.clients
    assert together.clients
    assert together.latencies == single.latencies
    assert together.failed_s == pytest.approx(dict(single.failed_s))
    assert together.failed_s
    for which, times in single.times.items():
        for mine, others in zip(together.times[which], times, strict=True):
            assert (mine.counts, mine.examples, mine.traced) == (others.counts, others.examples, others.traced)
            assert mine.total == pytest.approx(others.total)
    assert [made for _, made in decisions[0].recent.newest()] == [made for _, made in decisions[1].recent.newest()]
    assert decisions[0].find("r-499") == decisions[1].find("r-499")
    assert decisions[0].find("r-499") is not None
