"""Votes in a worker: for the items that asked, made by `finish`, in a line that fits a header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timebound as tb
from timebound.clock import ManualClock
from timebound.types import Outcome, Report
from timebound.workers.members import open_runner
from timebound.workers.votes import MAX_BYTES, votes_line


class Adders(tb.Model):
    """Members add 1 and 5; 13 cannot be computed, and `finish` fails where the sum is 101."""

    class Request(tb.Struct):
        n: float

    def __init__(self) -> None:
        self.net = tb.ensemble(lambda batch: batch + 1, lambda batch: batch + 5, names=["low", "high"])

    def prepare(self, request: Any) -> Any:
        if request.n < 0:
            raise tb.BadInput("n is below zero", field="n")
        return np.array([request.n])

    def infer(self, batch: Any) -> Any:
        if (batch == 13).any():
            raise RuntimeError("cannot")
        return self.net(batch)

    def finish(self, output: Any, request: Any) -> Any:
        if output[0] == 101:
            raise RuntimeError("secret")
        return {"sum": output[0]}


def bodies(*numbers: float) -> list[bytes]:
    return [msgspec.json.encode({"n": n}) for n in numbers]


def run(numbers: Sequence[float], asked: Sequence[int], model: tb.Model | None = None, **options: Any) -> Report:
    report = open_runner(model or Adders(), ManualClock()).run(bodies(*numbers), votes=asked, **options)
    assert report is not None
    return report


def told(report: Report) -> dict[int, Any]:
    return {place: json.loads(line) for place, line in report.votes.items()}


def ballot(low: float, high: float) -> list[Any]:
    return [{"member": "low", "answer": {"sum": low}}, {"member": "high", "answer": {"sum": high}}]


def test_only_items_that_asked_have_votes() -> None:
    report = run([1, 2, 3], asked=[1])
    assert told(report) == {1: ballot(3, 7)}
    assert [outcome.body for outcome in report.outcomes] == [b'{"sum":4.0}', b'{"sum":5.0}', b'{"sum":6.0}']


def test_nobody_asked_and_finish_runs_once_per_item() -> None:
    model, finished = Adders(), []
    model.finish = lambda output, request: finished.append(request.n)  # type: ignore[method-assign]
    assert run([1, 2], asked=[], model=model).votes == {}
    assert finished == [1, 2]


def test_places_count_refused_items_too() -> None:
    assert told(run([-1, 2, -1, 4], asked=[0, 1, 3])) == {1: ballot(3, 7), 3: ballot(5, 9)}


def test_votes_survive_an_item_that_breaks_the_batch() -> None:
    report = run([1, 2, 13, 4], asked=[0, 2, 3])
    assert [outcome.code for outcome in report.outcomes] == ["", "", "model_failed", ""]
    assert told(report) == {0: ballot(2, 6), 3: ballot(5, 9)}


def test_a_member_whose_answer_cannot_be_finished_says_so_and_the_answer_stands() -> None:
    report = run([100], asked=[0])
    assert report.outcomes[0].body == b'{"sum":103.0}'
    (low, high) = told(report)[0]
    assert "finish failed" in low["problem"]
    assert "secret" not in low["problem"]
    assert high["answer"] == {"sum": 105}


def test_an_infer_that_cannot_run_again_costs_only_the_votes() -> None:
    class Once(Adders):
        runs = 0

        def infer(self, batch: Any) -> Any:
            self.runs += 1
            if self.runs > 1:
                raise RuntimeError("only once")
            return self.net(batch)

    report = run([1], asked=[0], model=Once())
    assert (report.outcomes[0].body, report.votes) == (b'{"sum":4.0}', {})


def test_after_each_member_there_are_the_votes_so_far() -> None:
    seen: list[Report] = []

    def ask(report: Report) -> bool:
        seen.append(report)
        return True

    last = open_runner(Adders(), ManualClock()).run(bodies(1, 2), ask, votes=[1])
    assert last is not None
    assert [told(report) for report in (*seen, last)] == [{1: ballot(3, 7)[:1]}, {1: ballot(3, 7)}]


def test_a_model_without_members_has_no_votes() -> None:
    class Plain(Adders):
        def __init__(self) -> None:
            self.net = lambda batch: batch

    assert run([1], asked=[0], model=Plain()).votes == {}


def answer(value: Any) -> Outcome:
    return Outcome(msgspec.json.encode(value))


def test_a_line_of_votes_is_ascii_json() -> None:
    line = votes_line([("小", answer({"answer": "人\x7f\r\n"})), ("bytes", Outcome(b"\x00", media="image/png"))])
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == [{"member": "小", "answer": {"answer": "人\x7f\r\n"}}, {"member": "bytes", "bytes": 1}]


def test_long_answers_keep_their_short_fields() -> None:
    long = answer({"label": "cat", "scores": list(range(1000))})
    assert json.loads(votes_line([("a", long), ("b", long)])) == [
        {"member": name, "answer": {"label": "cat"}, "is_cut": True} for name in ("a", "b")
    ]


def test_answers_that_stay_too_long_are_left_out_from_the_end() -> None:
    line = votes_line([("a", answer("short")), ("b", answer("x" * MAX_BYTES))])
    assert json.loads(line) == [{"member": "a", "answer": "short"}, {"member": "b", "is_cut": True}]


JSON = st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists)


@given(st.lists(st.tuples(st.text(max_size=99), st.dictionaries(st.text(max_size=9), JSON) | JSON), max_size=9))
def test_any_votes_fit_a_header(votes: list[tuple[str, Any]]) -> None:
    line = votes_line([(member, answer(value)) for member, value in votes])
    assert len(line) <= MAX_BYTES
    assert line.isascii()
    assert line.isprintable()
    assert [vote["member"][:64] for vote in json.loads(line)] == [member[:64] for member, _ in votes]


@pytest.mark.parametrize("count", [1, 1000])
def test_any_number_of_members_fits_or_nothing_is_said(count: int) -> None:
    line = votes_line([(f"member {number}", answer(number)) for number in range(count)])
    assert len(json.loads(line)) == 1 if count == 1 else line == ""
