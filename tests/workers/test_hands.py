"""Hands are real processes: they prepare as the worker would, and what one dies of costs that item."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.serving import MODELS, PATIENCE_S, eventually

from timebound.clock import MonotonicClock
from timebound.target import load_models
from timebound.types import Loss, ModelInfo, Outcome, Report
from timebound.workers.hands import Hands
from timebound.workers.messages import WorkerPlan
from timebound.workers.preparation import open_preparation
from timebound.workers.runner import Runner

pytestmark = pytest.mark.live


class Bench:
    """A worker's slot with two hands beside it, for the models of one file; they may get a signal on their way."""

    def __init__(self, target: Path, sign: signal.Signals | None = None) -> None:
        clock = MonotonicClock()
        self.hands = Hands(WorkerPlan(target=str(target), cores=2, log_level="error"), 2, 1, 0, clock)
        if sign is not None:
            eventually(lambda: len(self.hands.pids()) == 2, "hands on their way")
            for pid in self.hands.pids():
                os.kill(pid, sign)
        models = load_models(target, threads=1)
        self.runners = {runner.name: runner for runner in (Runner(model, clock) for model in models)}
        infos = [ModelInfo(name=name, max_batch=type(run.model).max_batch) for name, run in self.runners.items()]
        self.why = open_preparation(self.runners, infos, self.hands, clock)

    def run(self, *bodies: bytes, is_suspect: bool = False) -> Report:
        room = self.hands.areas[0].receive(sum(map(len, bodies)))
        room[:] = b"".join(bodies)
        views, at = [], 0
        for body in bodies:
            views.append(room[at : at + len(body)])
            at += len(body)
        report = self.runners["handed"].run(views, is_suspect=is_suspect)
        assert report is not None
        return report

    def close(self) -> None:
        self.hands.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench(MODELS / "handed.py")
    assert not bench.why
    yield bench
    bench.close()


@pytest.fixture(autouse=True)
def both_are_up(bench: Bench) -> None:
    eventually(lambda: bench.hands.up == 2, "both hands")


def body(n: float, doing: str = "") -> bytes:
    return msgspec.json.encode({"n": n, "doing": doing})


def said(outcomes: Sequence[Outcome]) -> list[Any]:
    return [outcome.code or msgspec.json.decode(outcome.body)["twice"] for outcome in outcomes]


def preparers(report: Report) -> set[int]:
    return {msgspec.json.decode(each.body)["prepared_by"] for each in report.outcomes if not each.code}


def test_hands_prepare_a_batch_in_order(bench: Bench) -> None:
    report = bench.run(*(body(n) for n in range(20)))
    assert said(report.outcomes) == [2.0 * n for n in range(20)]
    assert preparers(report) <= set(bench.hands.pids())


def test_one_or_two_items_are_prepared_in_the_worker(bench: Bench) -> None:
    assert preparers(bench.run(body(1), body(2))) == {os.getpid()}


def test_a_suspect_is_prepared_by_a_hand_even_alone(bench: Bench) -> None:
    assert os.getpid() not in preparers(bench.run(body(1), is_suspect=True))


def test_a_refused_item_leaves_its_neighbours_alone(bench: Bench) -> None:
    outcomes = bench.run(*(body(-n if n % 3 == 2 else n) for n in range(1, 13))).outcomes
    assert said(outcomes) == ["bad_input" if n % 3 == 2 else 2.0 * n for n in range(1, 13)]
    assert msgspec.json.decode(outcomes[1].body) == {"detail": "n is below zero", "field": "n"}


def test_an_item_of_another_form_takes_the_batch_out_of_its_rows(bench: Bench) -> None:
    bodies = [body(n) for n in range(8)]
    assert said(bench.run(*bodies, body(1, "odd")).outcomes) == [2.0 * n for n in range(8)] + [0.0]


@pytest.mark.parametrize("sign", [signal.SIGSTOP, signal.SIGKILL])
def test_hands_that_are_killed_or_stopped_on_their_way_hold_no_worker_up(sign: signal.Signals) -> None:
    began = time.monotonic()
    with closing(Bench(MODELS / "handed.py", sign)) as bench:
        assert time.monotonic() - began < PATIENCE_S
        assert bench.hands.up == 2
        assert said(bench.run(*(body(n) for n in range(8))).outcomes) == [2.0 * n for n in range(8)]


def test_a_refusal_too_long_to_hand_over_is_told_in_full(bench: Bench) -> None:
    outcomes = bench.run(*(body(n) for n in range(5)), body(1, "long")).outcomes
    assert outcomes[5].code == "bad_input"
    assert len(outcomes[5].body) > 100_000


@pytest.mark.parametrize(
    ("doing", "losses"),
    [
        ("crash", [Loss.CRASHED] * 2),
        ("fork", [Loss.CRASHED] * 2),
        ("hang", [Loss.HUNG]),
        ("spin", [Loss.HUNG]),
    ],
)
def test_an_item_that_ends_or_holds_up_hands_is_the_only_one_lost(bench: Bench, doing: str, losses: list[Loss]) -> None:
    before = bench.hands.pids()
    report = bench.run(*(body(n, doing if n == 5 else "") for n in range(12)))
    assert said(report.outcomes) == ["crashes_worker" if n == 5 else 2.0 * n for n in range(12)]
    assert report.killers == {5: losses}
    eventually(lambda: bench.hands.up == 2, "new hands in the place of those that are gone")
    assert bench.hands.pids() != before


def test_hands_that_are_killed_from_outside_cost_nothing(bench: Bench) -> None:
    for pid in bench.hands.pids():
        os.kill(pid, signal.SIGKILL)
    report = bench.run(*(body(n) for n in range(20)))
    assert said(report.outcomes) == [2.0 * n for n in range(20)]
    assert not report.killers


def test_a_hand_that_somebody_has_stopped_is_replaced_and_nobody_is_blamed(bench: Bench) -> None:
    stopped = bench.hands.pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    report = bench.run(*(body(n) for n in range(20)))
    assert said(report.outcomes) == [2.0 * n for n in range(20)]
    assert not report.killers


def test_where_most_items_have_other_shapes_than_the_example_hands_are_not_asked_any_more() -> None:
    bench = Bench(MODELS / "handed.py")
    try:
        for _ in range(8):
            assert said(bench.run(*(body(n, "odd") for n in range(16))).outcomes) == [0.0] * 16
        assert not bench.hands.is_able("handed")
        assert preparers(bench.run(*(body(n) for n in range(4)))) == {os.getpid()}
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"equip": "load_only"}, "prepare() fails without load(): AttributeError"),
        ({"np.float64(request.n * self.one)": "str(request.n)"}, "prepare() gives a dict; a numpy array"),
        ({"if request.n < 0:": "self.last = request.n\n        if request.n < 0:"}, "sets attributes of self"),
        ({"if request.n < 0:": "request.n += 1\n        if request.n < 0:"}, "prepare() changes the request"),
        ({"np.int64(os.getpid())": "np.zeros(10_000_000)"}, "MiB of shared memory"),
    ],
)
def test_what_hands_cannot_prepare_is_prepared_in_the_worker_with_one_sentence(
    tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    text = (MODELS / "handed.py").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(f"def {old}", f"def {new}") if old == "equip" else text.replace(old, new)
    text = text.replace("self.weight = 2.0", "self.weight = 2.0\n        self.one = 1.0")
    (tmp_path / "app.py").write_text(text)
    bench = Bench(tmp_path / "app.py")
    try:
        assert len(bench.why) == 1
        assert bench.why["handed"].startswith("handed: prepared in the worker, not in processes of its own: ")
        assert sentence in bench.why["handed"]
        assert bench.runners["handed"].preparing is None
    finally:
        bench.close()
