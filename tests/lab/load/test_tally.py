from __future__ import annotations

import json

import pytest

from timebound.lab.load.attempts import Attempt, End, Question
from timebound.lab.load.health import warnings
from timebound.lab.load.tally import Tally, Timeline


def question(
    intended: float,
    *,
    latency: float = 0.1,
    end: End = End.ANSWERED,
    quality: str = "full",
    is_right: bool = True,
    status: int = 200,
    why: str = "",
) -> Question:
    attempt = Attempt(
        intended, intended, intended, latency, end, status, quality, "computed", is_right=is_right, why=why
    )
    return Question(intended, attempts=[attempt])


def tally_of(*questions: Question, deadline_s: float = 1.0, since: float = 0.0, until: float = 10.0) -> Tally:
    tally = Tally(deadline_s, since, until)
    for each in questions:
        tally.add(each)
    return tally


def test_goodput_is_what_the_model_answered_rightly_and_in_time() -> None:
    figures = tally_of(
        question(0.0),
        question(1.0, quality="partial"),
        question(2.0, quality="fallback"),
        question(3.0, latency=1.5),
        question(4.0, is_right=False),
        question(5.0, end=End.REFUSED, status=429),
        question(6.0, end=End.TIMED_OUT),
        question(7.0, end=End.LOST, why="connection reset"),
    ).figures()
    assert (figures["goodput"], figures["in_time"]) == (2 / 8, 3 / 8)
    assert (figures["late"], figures["wrong"], figures["failed"]) == (1, 1, 3)
    assert (figures["refused"], figures["timed_out"], figures["lost"]) == (1, 1, 1)
    assert figures["partial_share"] == pytest.approx(1 / 5)


def test_what_came_up_while_warming_up_does_not_count() -> None:
    figures = tally_of(question(0.5, latency=5.0), question(2.5), since=2.0).figures()
    assert figures["requests"] == 1
    assert figures["max_ms"] == pytest.approx(100.0)


def test_rates_are_of_what_ended_in_the_time_that_counts() -> None:
    tally = tally_of(*(question(second, latency=0.5) for second in range(12)))
    assert tally.figures()["answered_rps"] == pytest.approx(1.0)


def test_without_an_end_the_last_answer_is_the_end() -> None:
    tally = tally_of(question(0.0), question(1.9), until=float("inf"))
    assert tally.figures()["seconds"] == pytest.approx(2.0)
    assert tally.figures()["answered_rps"] == pytest.approx(1.0)


def test_a_run_that_was_cut_short_has_the_rates_of_its_time() -> None:
    tally = tally_of(question(0.0), question(1.0))
    tally.end(2.0)
    assert tally.figures()["answered_rps"] == pytest.approx(1.0)


def test_the_details_say_why_requests_failed_and_are_plain_json() -> None:
    tally = tally_of(question(0.0, end=End.REFUSED, status=503), question(0.1, end=End.LOST, why="gone"), question(0.2))
    details = json.loads(json.dumps(tally.details()))
    assert details["statuses"] == {"503": 1}
    assert details["losses"] == {"gone": 1}
    assert details["sources"] == {"computed": 1}
    assert details["percentiles"][0] == [0.0, pytest.approx(100.0, rel=1e-3)]


def test_a_timeline_grows_by_halving_its_precision_and_loses_nothing() -> None:
    timeline = Timeline()
    for second in range(100):
        timeline.at(float(second)).requests += 1
    rows = timeline.rows()
    assert len(rows) <= 150
    assert sum(row["requests"] for row in rows) == 100
    assert timeline.width_s == pytest.approx(0.8)
    assert [row["at_s"] for row in rows[:3]] == pytest.approx([0.0, 0.8, 1.6])


def test_an_empty_tally_has_figures_too() -> None:
    assert tally_of().figures()["p99_ms"] == 0.0
    assert tally_of().details()["percentiles"] == []


FINE = {"client_cpu": 0.2, "client_send_lag_p99_ms": 0.3, "p99_ms": 20.0, "failed": 0, "requests": 100, "held_back": 0}


@pytest.mark.parametrize(
    ("change", "is_open_loop", "words"),
    [
        ({}, True, []),
        ({"client_cpu": 0.97}, False, ["the client is the bottleneck"]),
        ({"client_send_lag_p99_ms": 30.0}, True, ["the client sent late"]),
        ({"client_send_lag_p99_ms": 30.0}, False, []),
        ({"held_back": 7}, True, ["7 requests waited in the client"]),
        ({"failed": 5}, True, ["5.0% of the requests got no answer"]),
    ],
)
def test_a_reader_is_warned_when_the_client_is_to_blame(
    change: dict[str, float], is_open_loop: bool, words: list[str]
) -> None:
    found = warnings({**FINE, **change}, is_open_loop)
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))


def test_the_timeline_has_answers_by_when_they_came_and_who_waited() -> None:
    tally = Tally(5.0, 0.0, 4.0)
    tally.add(question(0.5, latency=1.0))
    tally.add(question(0.5, latency=0.5))
    for number in range(400):  # so that stretches are longer than they began
        tally.add(question(3.0 + number / 1000, latency=0.0))
    rows = tally.timeline.rows(4.0)
    width = rows[1]["at_s"] - rows[0]["at_s"]
    assert sum(row["under_way"] for row in rows) * width == pytest.approx(1.5)
    assert sum(row["answered_rps"] for row in rows) * width == pytest.approx(402)
    assert max(row["under_way"] for row in rows) == pytest.approx(2.0)


def test_the_shortest_answer_is_told_and_none_is_zero() -> None:
    assert tally_of(question(0.0, latency=0.2), question(0.1, latency=0.05)).figures()["min_ms"] == pytest.approx(50.0)
    assert tally_of().figures()["min_ms"] == 0.0
