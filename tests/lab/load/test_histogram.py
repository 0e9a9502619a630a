from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.lab.load.histogram import Histogram

durations = st.lists(st.floats(min_value=0.0, max_value=3600.0), min_size=1, max_size=300)
shares = st.floats(min_value=0.0, max_value=1.0)


def of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(durations, shares)
def test_a_quantile_is_that_of_the_sorted_values_to_a_thousandth(values: list[float], share: float) -> None:
    ordered = sorted(values)
    rank = next(n for n in range(1, len(values) + 1) if n >= share * len(values) - 1e-6)
    assert of(values).quantile(share) == pytest.approx(ordered[rank - 1], rel=1e-3, abs=1e-6)


@given(durations, durations)
def test_two_merged_are_one_of_all(first: list[float], second: list[float]) -> None:
    merged, whole = of(first), of(first + second)
    merged.merge(of(second))
    assert merged.count == whole.count
    assert merged.longest == whole.longest
    assert list(merged.quantiles([0.5, 0.9, 0.99])) == list(whole.quantiles([0.5, 0.9, 0.99]))


def test_the_longest_is_exact_and_no_quantile_exceeds_it() -> None:
    histogram = of([0.1, 1.2345678])
    assert histogram.longest == 1.2345678
    assert histogram.quantile(1.0) <= histogram.longest


def test_an_empty_one_says_zero() -> None:
    assert Histogram().quantile(0.99) == 0.0
    assert Histogram().mean == 0.0


def test_a_clock_that_seems_to_go_back_counts_as_zero() -> None:
    assert of([-0.001]).quantile(0.5) <= 1e-6
