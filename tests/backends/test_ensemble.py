"""Ensembles: what members say together is exact, whoever of them has spoken."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from timebound.backends.base import Backend, TensorSpec
from timebound.backends.ensemble import Mixture, ensemble
from timebound.backends.python import python
from timebound.errors import SetupError

# Small multiples of 1/8 add up exactly in every float, so any deviation is a mistake and not rounding.
EIGHTHS = st.integers(-800, 800).map(lambda n: n / 8)
WEIGHTS = st.integers(1, 16).map(lambda n: n / 4)


@st.composite
def outputs(draw: st.DrawFn, dtype: Any = np.float64, elements: Any = EIGHTHS) -> list[Any]:
    """What one to five members say about one to four items of one to three classes."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    return draw(st.lists(arrays.arrays(dtype, shape, elements=elements), min_size=1, max_size=5))


def always(output: Any) -> Backend:
    """A member that says the same about every batch."""
    return python(lambda batch: output)


def exact(parts: list[Any], weights: list[float]) -> Any:
    """The weighted mean in exact arithmetic, rounded once at the end."""
    total = sum(map(Fraction, weights))
    mean = [
        float(sum(Fraction(w) * Fraction(float(part.flat[i])) for part, w in zip(parts, weights, strict=True)) / total)
        for i in range(parts[0].size)
    ]
    return np.array(mean).reshape(parts[0].shape)


@given(outputs())
def test_the_mean_is_exact_for_every_number_of_members_done(parts: list[Any]) -> None:
    mixture = Mixture("mean")
    for done in range(1, len(parts) + 1):
        mixture.add(parts[done - 1])
        assert mixture.count == done
        np.testing.assert_array_equal(mixture.value(), exact(parts[:done], [1.0] * done))


@given(outputs(), st.data())
def test_the_weighted_mean_is_exact_for_every_number_of_members_done(parts: list[Any], data: st.DataObject) -> None:
    weights = data.draw(st.lists(WEIGHTS, min_size=len(parts), max_size=len(parts)))
    mixture = Mixture("weighted")
    for done, (part, weight) in enumerate(zip(parts, weights, strict=True), start=1):
        mixture.add(part, weight)
        np.testing.assert_array_equal(mixture.value(), exact(parts[:done], weights[:done]))


@given(outputs())
def test_a_vote_is_the_share_of_members_for_each_class(parts: list[Any]) -> None:
    mixture = Mixture("vote")
    for done in range(1, len(parts) + 1):
        mixture.add(parts[done - 1])
        value = mixture.value()
        for item, classes in enumerate(value):
            winners = [int(part[item].argmax()) for part in parts[:done]]
            shares = [winners.count(cls) / done for cls in range(len(classes))]
            np.testing.assert_allclose(classes, shares, rtol=1e-6)


@given(outputs(np.uint8, st.integers(0, 255)))
def test_small_whole_numbers_do_not_overflow_in_a_mean(parts: list[Any]) -> None:
    members = [always(part) for part in parts]
    np.testing.assert_allclose(ensemble(*members)(None), exact(parts, [1.0] * len(parts)))


def test_whole_numbers_keep_their_weights() -> None:
    net = ensemble(lambda batch: [[0], [4]], lambda batch: [[4], [0]], combine="weighted", weights=[0.5, 1.5])
    np.testing.assert_array_equal(net(None), [[3.0], [1.0]])


def test_truths_are_averaged_as_numbers() -> None:
    net = ensemble(
        lambda batch: np.array([[True]]), lambda batch: np.array([[True]]), lambda batch: np.array([[False]])
    )
    np.testing.assert_allclose(net(None), [[2 / 3]])


@pytest.mark.parametrize("kinds", [(np.int64, np.float32), (np.float32, np.float64), (np.float64, np.int8)])
def test_members_of_different_dtypes_are_combined(kinds: tuple[Any, Any]) -> None:
    members = [always(np.full((2, 2), n, kind)) for n, kind in enumerate(kinds, start=1)]
    np.testing.assert_array_equal(ensemble(*members)(None), np.full((2, 2), 1.5))


def test_floats_keep_their_width() -> None:
    net = ensemble(lambda batch: np.ones((2, 2), np.float32), lambda batch: np.zeros((2, 2), np.float32))
    assert net(None).dtype == np.float32


def test_members_outputs_are_not_written_to() -> None:
    kept = np.ones((2, 2))
    net = ensemble(lambda batch: kept, lambda batch: kept)
    value = net(None)
    value += 5
    np.testing.assert_array_equal(kept, np.ones((2, 2)))


def test_a_value_taken_early_is_not_changed_by_later_members() -> None:
    mixture = Mixture("mean")
    mixture.add(np.array([[2.0]]))
    early = mixture.value()
    mixture.add(np.array([[4.0]]))
    assert early == 2.0
    assert mixture.value() == 3.0


@pytest.mark.parametrize("combine", ["mean", "weighted", "vote"])
def test_an_ensemble_of_one_member_is_that_member(combine: str) -> None:
    weights = [3.0] if combine == "weighted" else None
    net = ensemble(lambda batch: np.array([[0.0, 1.0]]), combine=combine, weights=weights)
    np.testing.assert_array_equal(net(None), [[0.0, 1.0]])


@pytest.mark.parametrize("combine", ["mean", "vote"])
def test_members_that_disagree_in_shape_are_told_which(combine: str) -> None:
    net = ensemble(
        lambda batch: np.zeros((2, 3)), lambda batch: np.zeros((2, 3)), lambda batch: np.zeros((2, 1)), combine=combine
    )
    with pytest.raises(ValueError, match="must agree") as caught:
        net(None)
    assert str(caught.value) == ("member 3 gave shape (2, 1), the first gave (2, 3); members of an ensemble must agree")


def test_a_vote_needs_scores_per_class() -> None:
    with pytest.raises(
        ValueError, match=r"vote needs one row of class scores per item, but a member gave shape \(2,\)"
    ):
        ensemble(lambda batch: np.zeros(2), combine="vote")(None)


@pytest.mark.parametrize("weights", [None, [], [1.0], [1.0, 1.0, 1.0]])
def test_weighted_needs_one_weight_per_member(weights: list[float] | None) -> None:
    with pytest.raises(SetupError, match="ensemble of 2 members needs 2 weights, got"):
        ensemble(len, len, combine="weighted", weights=weights)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_a_number_above_zero(weight: float) -> None:
    with pytest.raises(SetupError, match="weights must be"):
        ensemble(len, len, combine="weighted", weights=[1.0, weight])


def test_weights_without_weighted_are_refused() -> None:
    with pytest.raises(SetupError, match='takes no weights; use combine="weighted"'):
        ensemble(len, len, weights=[1.0, 2.0])


def test_an_unknown_way_to_combine_lists_the_known_ones() -> None:
    with pytest.raises(SetupError, match=r"ensemble\(combine='max'\) is unknown; choose one of mean, weighted, vote"):
        ensemble(len, combine="max")


def test_an_ensemble_needs_a_member() -> None:
    with pytest.raises(SetupError, match="needs at least one member"):
        ensemble()


def test_an_ensemble_is_a_backend_as_parallel_as_its_members() -> None:
    free, bound = python(len, parallel=True), python(len)
    assert isinstance(ensemble(free), Backend)
    assert ensemble(free, free).parallel
    assert not ensemble(free, bound).parallel


def test_an_ensemble_takes_what_its_first_member_takes() -> None:
    member = python(len)
    member.inputs = [TensorSpec("x", "float32", (None, 3))]
    assert ensemble(member, len).inputs == member.inputs
