"""An ensemble run member by member, whatever the user's `infer` does around it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import timebound as tb
from timebound.backends.ensemble import Ensemble, Steps, in_steps, on_cores, timed_in

BATCH = np.array([[0.0], [1.0]])


def adds(amount: float) -> Callable[[Any], Any]:
    return lambda batch: batch + amount


def take_steps(infer: Callable[[], Any], answers: list[bool]) -> tuple[Any, list[tuple[int, list[Any]]], Steps]:
    """What `infer` returns, what was reported after each member, and the steps taken; `answers` say go or stop."""
    seen: list[tuple[int, list[Any]]] = []

    def report(now: Callable[[], Any], members: int) -> bool:
        seen.append((members, np.asarray(now()).ravel().tolist()))
        return answers[len(seen) - 1]

    steps = Steps(infer, report)
    with in_steps(steps):
        return infer(), seen, steps


def test_each_member_but_the_last_is_reported_with_the_answers_so_far() -> None:
    net = tb.ensemble(adds(0), adds(3), adds(6))
    value, seen, steps = take_steps(lambda: net(BATCH), [True, True])
    assert seen == [(1, [0.0, 1.0]), (2, [1.5, 2.5])]
    assert value.ravel().tolist() == [3.0, 4.0]
    assert steps.is_complete


def test_a_stop_leaves_the_later_members_alone() -> None:
    ran: list[str] = []

    def member(name: str) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            ran.append(name)
            return batch

        return run

    net = tb.ensemble(member("a"), member("b"))
    _, seen, steps = take_steps(lambda: net(BATCH), [False])
    assert (ran, [members for members, _ in seen], steps.is_complete) == (["a"], [1], False)


def test_what_infer_does_with_the_outputs_is_done_to_every_report() -> None:
    net = tb.ensemble(adds(0), adds(2))
    value, seen, _ = take_steps(lambda: net(BATCH * 10) * 2 + 1, [True])
    assert seen == [(1, [1.0, 21.0])]
    assert value.ravel().tolist() == [3.0, 23.0]


def test_a_second_ensemble_in_infer_runs_whole() -> None:
    first, second = tb.ensemble(adds(0), adds(2)), tb.ensemble(adds(10), adds(20))
    value, seen, _ = take_steps(lambda: first(BATCH) + second(BATCH), [True])
    assert len(seen) == 1
    assert value.ravel().tolist() == [16.0, 18.0]


def test_outside_of_steps_an_ensemble_just_runs() -> None:
    assert tb.ensemble(adds(0), adds(2))(BATCH).ravel().tolist() == [1.0, 2.0]


def test_members_run_in_order_of_accuracy_per_second_where_accuracies_are_given() -> None:
    ran: list[str] = []

    def member(name: str, work: int) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            ran.append(name)
            np.linalg.norm(np.ones(work))
            return batch

        return run

    net = Ensemble(member("slow", 3_000_000), member("quick", 10), accuracies=[0.9, 0.8])
    net(BATCH)
    net.put_in_order()
    ran.clear()
    net(BATCH)
    assert ran == ["quick", "slow"]


def test_without_accuracies_the_order_is_as_written() -> None:
    net = Ensemble(adds(1), adds(2))
    net(BATCH)
    net.put_in_order()
    assert net.order == [0, 1]


def test_members_side_by_side_give_what_they_give_one_after_another() -> None:
    meeting = Barrier(2, timeout=10)  # passes only if two members run at the same time

    def meets(amount: float) -> Any:
        def run(batch: Any) -> Any:
            meeting.wait()
            return batch + amount

        return tb.python(run, parallel=True)

    net = tb.ensemble(meets(1), meets(5), combine="weighted", weights=[1, 3])
    with on_cores(2):
        assert net(BATCH).ravel().tolist() == [4.0, 5.0]


def test_when_each_member_ran_beside_others_is_told_to_who_asks() -> None:
    meeting, told = Barrier(2, timeout=10), list[tuple[float, float]]()

    def meets(batch: Any) -> Any:
        meeting.wait()
        return batch

    net = tb.ensemble(*(tb.python(meets, parallel=True) for _ in range(2)))
    with on_cores(2), timed_in(told):
        net(BATCH)
    (one_began, one_took), (other_began, other_took) = told
    assert max(one_began, other_began) < min(one_began + one_took, other_began + other_took), "they overlap"


def test_members_that_cannot_run_side_by_side_do_not() -> None:
    net = tb.ensemble(adds(0), adds(2))
    with on_cores(2):
        assert net(BATCH).ravel().tolist() == [1.0, 2.0]


def test_an_error_of_a_member_elsewhere_is_raised_here() -> None:
    def fails(batch: Any) -> Any:
        raise ValueError("no")

    net = tb.ensemble(tb.python(adds(1), parallel=True), tb.python(fails, parallel=True))
    with on_cores(2), pytest.raises(ValueError, match="no"):
        net(BATCH)
