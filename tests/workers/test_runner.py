"""One batch inside a worker: every item gets its own outcome, whatever its neighbours are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timebound as tb
from timebound.clock import ManualClock, MonotonicClock
from timebound.types import Outcome, Report, Timing
from timebound.workers.members import open_runner
from timebound.workers.runner import stack


class Doubler(tb.Model):
    """Takes `{"n": number}` and answers `{"twice": 2 n}`; 13 is an item it cannot compute."""

    class Request(tb.Struct):
        n: float

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def prepare(self, request: Any) -> Any:
        if request.n < 0:
            raise tb.BadInput("n is below zero", field="n")
        return np.array([request.n])

    def infer(self, batch: Any) -> Any:
        self.sizes.append(len(batch))
        if (np.asarray(batch) == 13).any():
            raise RuntimeError("secret: cannot compute 13")
        return np.asarray(batch) * 2

    def finish(self, output: Any, request: Any) -> Any:
        return {"twice": output[0]}


class Raw(tb.Model):
    """Gives its body back."""

    def infer(self, batch: Any) -> Any:
        return batch


def run(model: tb.Model, bodies: Sequence[bytes]) -> list[Outcome]:
    report = open_runner(model, ManualClock()).run(bodies)
    assert report is not None
    outcomes = report.outcomes
    assert len(outcomes) == len(bodies)
    return outcomes


def run_raw(*bodies: bytes, **stages: Any) -> list[Outcome]:
    """Run a raw model with these functions in the place of its methods."""
    model = type("Made", (Raw,), {})()
    for name, stage in stages.items():
        setattr(model, name, stage)
    return run(model, bodies)


def said(outcome: Outcome) -> Any:
    return msgspec.json.decode(outcome.body)


def n(value: float) -> bytes:
    return msgspec.json.encode({"n": value})


def test_outcomes_come_in_the_order_of_the_bodies() -> None:
    outcomes = run(Doubler(), [n(i) for i in range(5)])
    assert [said(outcome) for outcome in outcomes] == [{"twice": 2 * i} for i in range(5)]
    assert {(outcome.code, outcome.media) for outcome in outcomes} == {("", "application/json")}


def test_eight_broken_items_of_three_kinds_cost_their_56_neighbours_nothing() -> None:
    bodies = [n(100 + i) for i in range(64)]
    broken = {3: b"{", 9: b"{", 17: n(-1), 21: n(-2), 30: n(-3), 41: n(13), 50: n(13), 63: n(13)}
    for place, body in broken.items():
        bodies[place] = body
    outcomes = run(Doubler(), bodies)
    codes = {place: outcome.code for place, outcome in enumerate(outcomes) if outcome.code}
    assert codes == {
        **dict.fromkeys((3, 9), "malformed_json"),
        **dict.fromkeys((17, 21, 30), "bad_input"),
        **dict.fromkeys((41, 50, 63), "model_failed"),
    }
    good = [place for place in range(64) if place not in broken]
    assert len(good) == 56
    assert all(said(outcomes[place]) == {"twice": 2 * (100 + place)} for place in good)


@given(st.lists(st.sampled_from([b"{", n(-1), n(13), n(1)]), max_size=12))
def test_any_mixture_of_items_gets_one_fitting_outcome_each(bodies: list[bytes]) -> None:
    wanted = {b"{": "malformed_json", n(-1): "bad_input", n(13): "model_failed", n(1): ""}
    logging.getLogger("timebound.worker").disabled = True
    try:
        assert [outcome.code for outcome in run(Doubler(), bodies)] == [wanted[body] for body in bodies]
    finally:
        logging.getLogger("timebound.worker").disabled = False


def test_a_poison_item_is_found_by_halving() -> None:
    model = Doubler()
    bodies = [n(i) for i in range(100, 116)]
    bodies[5] = n(13)
    outcomes = run(model, bodies)
    assert [place for place, outcome in enumerate(outcomes) if outcome.code] == [5]
    assert model.sizes == [16, 8, 4, 4, 2, 1, 1, 2, 8]


def test_a_batch_of_only_broken_items_is_not_inferred() -> None:
    model = Doubler()
    assert [outcome.code for outcome in run(model, [b"{", n(-1)])] == ["malformed_json", "bad_input"]
    assert model.sizes == []


def test_an_empty_batch_has_no_outcomes() -> None:
    assert run(Doubler(), []) == []


def test_a_body_of_the_wrong_type_names_its_field() -> None:
    (outcome,) = run(Doubler(), [b'{"n": "many"}'])
    assert outcome.code == "bad_input"
    assert said(outcome) == {"detail": "Expected 'float', got 'str'", "field": "n"}


def test_bad_input_reaches_the_client_as_it_was_said() -> None:
    (outcome,) = run(Doubler(), [n(-1)])
    assert said(outcome) == {"detail": "n is below zero", "field": "n"}


def test_a_value_error_in_prepare_is_the_clients_doing(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = run_raw(b"x", b"7", prepare=int)
    assert (bad.code, said(bad)["detail"]) == ("bad_input", "the input cannot be used (ValueError)")
    assert said(good) == 7
    assert caplog.records == []


@pytest.mark.parametrize("stage", ["prepare", "infer", "finish"])
def test_another_error_is_logged_in_full_and_answered_neutrally(stage: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*given: Any) -> Any:
        raise KeyError("secret")

    (outcome,) = run_raw(b"x", **{stage: fail})
    assert outcome.code == "model_failed"
    assert said(outcome) == {
        "detail": f"{stage} failed on this item; the server's log has the details",
        "field": None,
    }
    (record,) = caplog.records
    assert record.getMessage() == f"made.{stage} failed"
    assert "KeyError: 'secret'" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("stage", ["infer", "finish"])
def test_a_value_error_after_prepare_is_the_models_doing(stage: str) -> None:
    (outcome,) = run_raw(b"x", **{stage: lambda *given: int("x")})
    assert outcome.code == "model_failed"


def test_an_error_of_our_own_may_come_from_any_stage() -> None:
    def refuse(*given: Any) -> Any:
        raise tb.BadInput("too blurry", field="image")

    for stage in ("prepare", "infer", "finish"):
        (outcome,) = run_raw(b"x", **{stage: refuse})
        assert (outcome.code, said(outcome)) == ("bad_input", {"detail": "too blurry", "field": "image"})


def test_a_failing_finish_costs_the_others_nothing() -> None:
    bad, good = run_raw(b"0", b"2", prepare=int, finish=lambda output, request: 1 / output)
    assert (bad.code, said(good)) == ("model_failed", 0.5)


@pytest.mark.parametrize(
    ("infer", "sentence"),
    [
        (lambda batch: [*batch, "one more"], "made.infer returned 2 outputs for 1 items; return one output per item"),
        (lambda batch: [], "made.infer returned 0 outputs for 1 items; return one output per item"),
        (lambda batch: None, "made.infer returned a NoneType; return one output per item"),
        (lambda batch: {"a": [1, 2, 3]}, "made.infer returned 3 outputs for 1 items; return one output per item"),
        (lambda batch: np.float32(1), "made.infer returned a float32; return one output per item"),
    ],
)
def test_another_number_of_outputs_is_the_models_failure(
    infer: Any, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = run_raw(b"a", b"b", infer=infer)
    assert [outcome.code for outcome in outcomes] == ["model_failed", "model_failed"]
    assert sentence in caplog.text


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(3), 3),
        ({"scores": np.zeros(2, np.float16), "best": np.uint8(9)}, {"scores": [0, 0], "best": 9}),
        (None, None),
        ("text", "text"),
    ],
)
def test_numpy_answers_become_plain_json(answer: Any, plain: Any) -> None:
    (outcome,) = run_raw(b"x", finish=lambda output, request: answer)
    assert (outcome.code, outcome.media, said(outcome)) == ("", "application/json", plain)


@pytest.mark.parametrize("answer", [b"\x89PNG", bytearray(b"\x89PNG")])
def test_bytes_answers_go_out_as_they_are(answer: Any) -> None:
    (outcome,) = run_raw(b"x", finish=lambda output, request: answer)
    assert (outcome.body, outcome.media) == (b"\x89PNG", "application/octet-stream")


def test_an_answer_json_cannot_say_is_the_models_failure(caplog: pytest.LogCaptureFixture) -> None:
    (outcome,) = run_raw(b"x", finish=lambda output, request: {"at": object()})
    assert outcome.code == "model_failed"
    assert "an answer holds a value of type object, which JSON cannot say; convert it in finish()" in caplog.text


def test_a_raw_model_gets_bytes_even_from_a_view() -> None:
    seen: list[Any] = []
    runner = open_runner(Raw(), ManualClock())
    runner.model.prepare = lambda request: seen.append(request) or "ok"  # type: ignore[method-assign, func-returns-value]
    runner.run([memoryview(b"xxabcxx")[2:-2]])
    assert seen == [b"abc"]


def test_arrays_of_one_shape_come_stacked_and_others_as_a_list() -> None:
    same = stack([np.zeros((2, 3)), np.ones((2, 3))])
    assert same.shape == (2, 2, 3)
    for other in (np.zeros((3, 2)), np.zeros((2, 3), np.float32), [[0.0]]):
        mixed = stack([np.zeros((2, 3)), other])
        assert isinstance(mixed, list)
        assert mixed[1] is other


def test_dicts_and_tuples_of_arrays_are_stacked_by_part() -> None:
    named = stack([{"a": np.zeros(2), "b": np.zeros(1)}, {"a": np.ones(2), "b": np.zeros(3)}])
    assert named["a"].shape == (2, 2)
    assert isinstance(named["b"], list)
    first, second = stack([(np.zeros(2), "x"), (np.ones(2), "y")])
    assert (first.shape, second) == ((2, 2), ["x", "y"])
    assert isinstance(stack([{"a": 1}, {"b": 2}]), list)
    assert isinstance(stack([(1,), (1, 2)]), list)


@pytest.mark.parametrize(
    "infer",
    [
        lambda batch: np.array([[1, 10], [2, 20]]),
        lambda batch: [[1, 10], [2, 20]],
        lambda batch: (row for row in [[1, 10], [2, 20]]),
        lambda batch: (np.array([1, 2]), [10, 20]),
    ],
    ids=["array", "list", "generator", "tuple"],
)
def test_outputs_of_every_form_are_given_back_item_by_item(infer: Any) -> None:
    assert [said(outcome) for outcome in run_raw(b"a", b"b", infer=infer)] == [[1, 10], [2, 20]]


def test_named_outputs_are_given_back_item_by_item() -> None:
    outcomes = run_raw(b"a", b"b", infer=lambda batch: {"label": ["x", "y"], "score": np.array([1, 2])})
    assert [said(outcome) for outcome in outcomes] == [{"label": "x", "score": 1}, {"label": "y", "score": 2}]


def test_the_time_of_each_stage_is_told() -> None:
    clock = ManualClock()

    class Slow(Raw):
        def prepare(self, request: Any) -> Any:
            return clock.advance(1)

        def infer(self, batch: Any) -> Any:
            clock.advance(10)
            return batch

        def finish(self, output: Any, request: Any) -> Any:
            return clock.advance(100)

    report = open_runner(Slow(), clock).run([b"a", b"b"])
    assert report is not None
    assert report.timing == Timing(2, 10, 200)


def test_a_runner_knows_the_models_name_and_members() -> None:
    model = Raw()
    assert (open_runner(model, ManualClock()).name, open_runner(model, ManualClock()).members) == ("raw", 1)
    model.net = tb.ensemble(len, len, len)
    assert open_runner(model, ManualClock()).members == 3


class Speechless(Exception):
    """Raises where its text is asked for."""

    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__


class Base(BaseException):
    """Of nobody's kind."""


def ring() -> Exception:
    """What `raise error from error` makes."""
    error = ValueError("why")
    error.__cause__ = error
    return error


ODD = [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit(), Base(), Speechless()]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["prepare", "infer", "finish"])
def test_whatever_a_model_raises_costs_only_its_item(stage: str, error: BaseException) -> None:
    def fails(first: Any, *more: Any) -> Any:
        if b"bad" in (first if isinstance(first, list) else [first]):
            raise error
        return first

    outcomes = run_raw(b"a", b"bad", b"b", **{stage: fails})
    assert [outcome.code for outcome in outcomes] == ["", "model_failed", ""]


def test_an_error_that_is_its_own_cause_costs_only_its_item() -> None:
    def fails(batch: Any) -> Any:
        if b"bad" in batch:
            raise ring()
        return batch

    assert [outcome.code for outcome in run_raw(b"a", b"bad", infer=fails)] == ["", "model_failed"]


class Forgetful(tb.BadInput):
    def __init__(self, why: str) -> None:
        self.args = (why,)


class Numbered(tb.RequestError):
    code: Any = 404


class Untold(tb.RequestError):
    @property
    def field(self) -> str:
        raise KeyError("nothing")

    @field.setter
    def field(self, field: str | None) -> None:
        pass


def test_an_error_that_raises_where_it_is_looked_at_costs_only_its_item() -> None:
    def fails(first: bytes) -> bytes:
        if first == b"bad":
            raise Untold("why")
        return first

    assert [outcome.code for outcome in run_raw(b"a", b"bad", prepare=fails)] == ["", "model_failed"]


@pytest.mark.parametrize(("error", "code"), [(Forgetful("why"), "bad_input"), (Numbered("why"), "model_failed")])
def test_an_error_of_the_users_own_class_is_told_whatever_that_leaves_out(error: tb.RequestError, code: str) -> None:
    def fails(first: bytes) -> bytes:
        raise error

    (outcome,) = run_raw(b"a", prepare=fails)
    assert (outcome.code, msgspec.json.decode(outcome.body)) == (code, {"detail": "why", "field": None})


@pytest.mark.parametrize("detail", [ValueError("why"), 7, "lone \ud800 surrogate", Speechless()])
def test_whatever_is_given_as_a_reason_crosses_the_wire(detail: Any) -> None:
    class Odd(tb.Model):
        def prepare(self, request: Any) -> Any:
            raise tb.BadInput(detail, field=detail)

        def infer(self, batch: Any) -> Any:
            return batch

    (outcome,) = run(Odd(), [b"x"])
    assert outcome.code == "bad_input"
    assert isinstance(msgspec.json.decode(outcome.body)["detail"], str)


def test_members_done_before_it_has_to_ask_are_noted_and_the_next_goes_on_at_once() -> None:
    class Three(tb.Model):
        def load(self) -> None:
            self.net = tb.ensemble(lambda batch: batch, lambda batch: batch + 3, lambda batch: batch + 6)

        def prepare(self, request: Any) -> Any:
            return np.array([float(request)])

    model = Three()
    model.load()
    clock = ManualClock()
    reports: list[Report] = []

    def ask(report: Report) -> bool:
        reports.append(report)
        clock.advance(0.06)
        return True

    report = open_runner(model, clock).run([b"1"], ask, ask_after_s=0.05)
    assert report is not None
    assert [(r.members, r.is_note, r.outcomes[0].body) for r in reports] == [(1, True, b"[1.0]"), (2, False, b"[2.5]")]
    assert (report.members, report.is_note, report.outcomes[0].body) == (3, False, b"[4.0]")


def test_nothing_is_reported_between_members_while_it_is_told_to_be_quiet() -> None:
    clock = ManualClock()

    def slow(batch: Any) -> Any:
        clock.advance(0.04)
        return batch

    class Three(tb.Model):
        def load(self) -> None:
            self.net = tb.ensemble(slow, slow, slow)

        def prepare(self, request: Any) -> Any:
            return np.array([float(request)])

    model = Three()
    model.load()
    reports: list[Report] = []

    def ask(report: Report) -> bool:
        reports.append(report)
        return True

    runner = open_runner(model, clock)
    assert runner.run([b"1"], ask, silent=(3, 1.0)) is not None
    assert reports == []
    assert runner.run([b"1"], ask, silent=(3, 0.05)) is not None
    assert [report.members for report in reports] == [2], "it is late: from now on somebody must know what there is"
    assert runner.run([b"1"], ask, silent=(1, 1.0)) is not None
    assert [report.members for report in reports] == [2, 1, 2], "the others are asked for"


def test_what_a_device_was_used_for_is_reported_once() -> None:
    class Plain(tb.Model):
        def infer(self, batch: Any) -> Any:
            return batch

    runner = open_runner(Plain(), ManualClock())
    runner.take_usage = lambda: SimpleNamespace(device_s=0.020, waited_s=0.005)
    report = runner.run([b"1"])
    assert report is not None
    assert (report.device_s, report.waited_s) == (0.020, 0.005)


def test_a_member_that_fails_comes_after_a_report_of_those_before_it() -> None:
    class Two(tb.Model):
        def load(self) -> None:
            self.net = tb.ensemble(lambda batch: batch, _fails)

        def prepare(self, request: Any) -> Any:
            return np.array([float(request)])

    model = Two()
    model.load()
    reports: list[Report] = []

    def ask(report: Report) -> bool:
        reports.append(report)
        return True

    report = open_runner(model, ManualClock()).run([b"1"], ask, ask_after_s=9.0)
    assert report is not None
    assert [(r.members, r.outcomes[0].code) for r in reports] == [(1, "")]
    assert [outcome.code for outcome in report.outcomes] == ["model_failed"]


def test_the_time_of_each_member_is_told_without_that_of_asking() -> None:
    clock = ManualClock()

    def member(seconds: float) -> Any:
        def infer(batch: Any) -> Any:
            clock.advance(seconds)
            return batch

        return infer

    class Two(tb.Model):
        def load(self) -> None:
            self.net = tb.ensemble(member(1.0), member(2.0))

        def prepare(self, request: Any) -> Any:
            return np.array([float(request)])

    def ask(report: Report) -> bool:
        clock.advance(100.0)
        return True

    model = Two()
    model.load()
    report = open_runner(model, clock).run([b"1"], ask)
    assert report is not None
    assert report.timing.members_s == (1.0, 2.0)


def test_members_that_ran_side_by_side_are_told_with_when_each_began_and_how_long_it_took() -> None:
    meeting = Barrier(2, timeout=10)

    def meets(batch: Any) -> Any:
        meeting.wait()
        return batch

    class Two(tb.Model):
        def load(self) -> None:
            self.net = tb.ensemble(*(tb.python(meets, parallel=True) for _ in range(2)))

        def prepare(self, request: Any) -> Any:
            return np.array([float(request)])

    model = Two()
    model.load()
    report = open_runner(model, MonotonicClock()).run([b"1"], cores=2)
    assert report is not None
    assert report.timing.members_s == ()
    assert len(report.timing.beside_s) == 2
    assert max(began + took for began, took in report.timing.beside_s) <= report.timing.infer_s


def _fails(batch: Any) -> Any:
    raise RuntimeError("this member is broken")


def test_what_holds_no_array_is_not_turned_inside_out() -> None:
    texts = [{"words": ["a", "b"]}, {"words": ["c"]}]
    assert stack(texts) == texts
    assert stack([("a", 1), ("b", 2)]) == [("a", 1), ("b", 2)]
    mixed = stack([{"x": np.zeros(2), "name": "a"}, {"x": np.ones(2), "name": "b"}])
    assert mixed["x"].shape == (2, 2)
    assert mixed["name"] == ["a", "b"]
