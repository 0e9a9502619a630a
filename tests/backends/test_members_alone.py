"""Members heard one by one: what each would have said alone, whatever the user's `infer` does around the ensemble."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.onnx_files import save_doubler

import timebound as tb
from timebound.backends.ensemble import Votes, heard_by, on_cores
from timebound.errors import SetupError

BATCH = np.array([[0.0], [1.0]])


def adds(amount: float) -> Callable[[Any], Any]:
    return lambda batch: batch + amount


def alone(infer: Callable[[], Any]) -> dict[str, list[float]]:
    """What each member says by itself about `BATCH`."""
    votes = Votes()
    with heard_by(votes):
        infer()
    return {name: np.asarray(outputs).ravel().tolist() for name, outputs in votes.alone(infer)}


def test_each_member_is_heard_alone() -> None:
    net = tb.ensemble(adds(1), adds(5), names=["low", "high"])
    assert alone(lambda: net(BATCH)) == {"low": [1.0, 2.0], "high": [5.0, 6.0]}


def test_weights_do_not_change_what_a_member_says_alone() -> None:
    net = tb.ensemble(adds(1), adds(5), combine="weighted", weights=[1, 3], names=["low", "high"])
    assert alone(lambda: net(BATCH)) == {"low": [1.0, 2.0], "high": [5.0, 6.0]}


def test_a_ballot_alone_goes_to_one_class() -> None:
    scores = np.array([[0.2, 0.7, 0.1]])
    net = tb.ensemble(lambda batch: scores, lambda batch: scores[:, ::-1], combine="vote", names=["a", "b"])
    votes = Votes()
    with heard_by(votes):
        net(BATCH)
    assert {name: value.tolist() for name, value in votes.alone(lambda: net(BATCH))} == {
        "a": [[0, 1, 0]],
        "b": [[0, 1, 0]],
    }


def test_members_side_by_side_are_heard_too() -> None:
    net = tb.ensemble(tb.python(adds(1), parallel=True), tb.python(adds(5), parallel=True), names=["a", "b"])
    with on_cores(2):
        assert alone(lambda: net(BATCH)) == {"a": [1.0, 2.0], "b": [5.0, 6.0]}


def test_what_infer_does_around_the_ensemble_is_done_for_each_member() -> None:
    net = tb.ensemble(adds(1), adds(5), names=["a", "b"])
    assert alone(lambda: net(BATCH) * 10) == {"a": [10.0, 20.0], "b": [50.0, 60.0]}


def test_members_are_not_run_again() -> None:
    ran: list[int] = []

    def counted(batch: Any) -> Any:
        ran.append(1)
        return batch

    net = tb.ensemble(counted, counted)
    alone(lambda: net(BATCH))
    assert len(ran) == 2


def test_only_the_first_ensemble_has_votes() -> None:
    first, second = tb.ensemble(adds(1), adds(5), names=["a", "b"]), tb.ensemble(adds(10), adds(30))
    assert alone(lambda: first(BATCH) + second(BATCH)) == {"a": [21.0, 23.0], "b": [25.0, 27.0]}


def test_afterwards_the_ensemble_answers_as_before() -> None:
    net = tb.ensemble(adds(0), adds(2))
    alone(lambda: net(BATCH))
    assert net(BATCH).ravel().tolist() == [1.0, 2.0]


def test_members_go_by_the_names_of_their_files_and_functions(tmp_path: Path) -> None:
    for name in ("small", "large"):
        save_doubler(tmp_path / f"{name}.onnx")

    def rule(batch: Any) -> Any:
        return batch

    net = tb.ensemble(tb.onnx(tmp_path / "small.onnx"), tb.onnx(tmp_path / "large.onnx"), rule, lambda batch: batch)
    assert net.names == ["small", "large", "rule", "member 4"]
    assert tb.ensemble(rule, rule).names == ["rule 1", "rule 2"]


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", 2], "ab"])
def test_names_must_be_one_per_member_and_differ(names: Any) -> None:
    with pytest.raises(SetupError, match="names"):
        tb.ensemble(adds(1), adds(2), names=names)
