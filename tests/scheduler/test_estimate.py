from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebound.scheduler.estimate import ENOUGH_TRIES, Estimate
from timebound.scheduler.saved import restore, save

LONG = 1e9


def best_batch(estimate: Estimate, longest_s: float = LONG) -> int:
    return estimate.curve(0, 1.0, longest_s).best


def feed(estimate: Estimate, rounds: int, seconds: dict[int, float], noise: float = 0.0, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        for batch, value in seconds.items():
            estimate.observe(batch, 1.0, value * rng.lognormvariate(0.0, noise))


@given(overhead=st.floats(1e-4, 0.1), per_item=st.floats(1e-4, 0.05))
@settings(max_examples=25, deadline=None)
def test_an_affine_machine_is_learned_exactly(overhead: float, per_item: float) -> None:
    estimate = Estimate(max_batch=64)
    feed(estimate, 20, {b: overhead + per_item * b for b in (1, 2, 4, 8, 16, 32)})
    assert estimate.predict(24, 1.0) == pytest.approx(overhead + per_item * 24, rel=0.02)
    assert estimate.safe < 1.02


def test_a_model_that_is_fastest_alone_is_run_alone() -> None:
    estimate = Estimate()
    feed(estimate, 20, {1: 0.0025, 2: 0.0060, 4: 0.0135, 8: 0.0304}, noise=0.05)
    assert best_batch(estimate) == 1


def test_a_network_that_gains_seven_percent_is_batched() -> None:
    estimate = Estimate()
    feed(estimate, 20, {1: 0.0100, 2: 0.0195, 4: 0.0380, 8: 0.0744}, noise=0.05)
    assert best_batch(estimate) >= 4


def test_a_large_overhead_asks_for_the_largest_batch_that_time_allows() -> None:
    for longest_s, expected in ((LONG, 63), (0.150, 27)):
        estimate = Estimate()
        feed(estimate, 20, {b: 0.080 + 0.0025 * b for b in (1, 2, 4, 8, 16, 32, 64)}, noise=0.03)
        assert best_batch(estimate, longest_s) == pytest.approx(expected, abs=3)


@pytest.mark.parametrize(
    ("overhead_s", "per_item_s", "best", "fastest"), [(0.080, 0.0025, 64, 64), (0.005, 0.020, 11, 19)]
)
def test_a_hundredth_of_the_rate_is_given_away_for_a_smaller_batch(
    overhead_s: float, per_item_s: float, best: int, fastest: int
) -> None:
    estimate = Estimate()
    feed(estimate, 20, {b: overhead_s + per_item_s * b for b in (1, 2, 4, 8, 16, 32, 64)})
    curve = estimate.curve(0, 1.0, 0.4)
    assert (curve.best, curve.fastest) == (best, fastest)


def test_a_step_in_the_curve_is_seen() -> None:
    estimate = Estimate()  # another kernel from 8 on: twice as slow
    feed(estimate, 20, {1: 0.010, 2: 0.015, 4: 0.025, 8: 0.090, 16: 0.170})
    assert estimate.predict(4, 1.0) == pytest.approx(0.025, rel=0.15)
    assert estimate.predict(8, 1.0) == pytest.approx(0.090, rel=0.15)
    assert best_batch(estimate) < 8


def test_trust_reaches_twice_as_far_as_was_seen() -> None:
    estimate = Estimate(max_batch=64)
    for expected in (2, 4, 8, 16, 32, 64, 64):
        last = len(estimate.curve(0, 1.0, LONG).seconds) - 1
        assert last == expected
        estimate.observe(last, 1.0, 0.080 + 0.0025 * last)


def test_hours_of_single_items_do_not_lock_the_batch_size() -> None:
    estimate = Estimate()
    feed(estimate, 500, {1: 0.0825}, noise=0.05)
    assert best_batch(estimate) == 2  # as far as trust reaches; it grows from there


def test_a_larger_batch_that_looked_worse_is_tried_again_after_a_while() -> None:
    estimate = Estimate()
    estimate.observe(1, 1.0, 0.010)
    for _ in range(ENOUGH_TRIES):
        assert estimate.wants_try(2)
        estimate.observe(2, 1.0, 0.100)
    assert not estimate.wants_try(2)
    feed(estimate, 300, {1: 0.010})
    assert estimate.wants_try(2)


def test_one_straggler_changes_no_prediction() -> None:
    estimate = Estimate()
    feed(estimate, 30, {1: 0.025, 4: 0.085}, noise=0.02)
    before = estimate.predict(4, 1.0)
    estimate.observe(4, 1.0, 0.85)
    assert estimate.predict(4, 1.0) == before


def test_a_lasting_slowdown_is_followed_within_a_dozen_batches() -> None:
    estimate = Estimate()
    feed(estimate, 50, {1: 0.025, 8: 0.165}, noise=0.02)
    feed(estimate, 6, {1: 0.05, 8: 0.33}, noise=0.02)
    assert estimate.predict(8, 1.0) == pytest.approx(0.33, rel=0.2)
    feed(estimate, 6, {1: 0.05, 8: 0.33}, noise=0.02)
    assert estimate.predict(8, 1.0) == pytest.approx(0.33, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_safe_covers_nineteen_of_twenty(noise: float) -> None:
    estimate, rng, late = Estimate(), random.Random(9), 0
    feed(estimate, 40, {1: 0.025, 8: 0.165}, noise=noise)
    for _ in range(1000):
        seconds = 0.165 * rng.lognormvariate(0.0, noise)
        late += seconds > 1.0001 * estimate.safe * estimate.predict(8, 1.0)
        estimate.observe(8, 1.0, seconds)
    assert late < 1000 * 0.08
    assert estimate.fast <= 1.0 <= estimate.safe


def test_members_that_cost_differently_are_told_apart() -> None:
    estimate = Estimate(members=3)
    for _ in range(200):
        for member, seconds in enumerate((0.010, 0.030, 0.005)):
            estimate.observe(4, 1.0, seconds, member)
    for member, seconds in enumerate((0.010, 0.030, 0.005)):
        assert estimate.predict(4, 1.0, member) == pytest.approx(seconds, rel=0.15)


def test_neighbours_that_slow_each_other_down_are_learned() -> None:
    estimate = Estimate()
    for i in range(400):
        busy = 1 + (i // 5) % 2
        estimate.observe(4, 1.0, 0.040 * (1.5 if busy == 2 else 1.0), busy=busy)
    assert estimate.predict(4, 1.0, busy=2) / estimate.predict(4, 1.0, busy=1) == pytest.approx(1.5, rel=0.15)


def test_lengths_have_their_own_shape() -> None:
    estimate = Estimate()
    for _ in range(30):
        estimate.observe(1, 10.0, 0.004)
        estimate.observe(1, 40.0, 0.020)  # worse than in proportion, as attention is
        estimate.observe(4, 10.0, 0.013)
    assert estimate.predict(1, 40.0) == pytest.approx(0.020, rel=0.1)
    assert estimate.predict(4, 10.0) == pytest.approx(0.013, rel=0.1)


def test_a_profile_survives_a_restart_as_json() -> None:
    estimate = Estimate(members=2)
    for _ in range(40):
        for batch in (1, 4, 16):
            for member in (0, 1):
                estimate.observe(batch, 1.0, (0.005 + 0.02 * batch) * (1 + member), member, busy=2)
    restored = Estimate(members=2)
    restore(restored, json.loads(json.dumps(save(estimate))))
    for batch in (1, 4, 16, 32):
        for member in (0, 1):
            assert restored.predict(batch, 1.0, member, busy=2) == pytest.approx(
                estimate.predict(batch, 1.0, member, busy=2), rel=0.05
            )
    assert len(json.dumps(save(estimate))) < 2_000


def test_an_empty_profile_changes_nothing() -> None:
    estimate = Estimate()
    restore(estimate, {})
    assert not estimate.known


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.2, 60.0), st.floats(1e-5, 10.0)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_whatever_is_observed_predictions_are_positive_and_never_fall(
    seen: list[tuple[int, float, float]],
) -> None:
    estimate = Estimate()
    for batch, size, seconds in seen:
        estimate.observe(batch, size, seconds)
    curve = estimate.curve(0, 1.0, 0.4)
    assert curve.seconds == sorted(curve.seconds)
    assert all(value > 0 for value in curve.seconds[1:])
    assert 1 <= curve.best < len(curve.seconds)
    assert estimate.predict(8, 3.0) > 0


def test_sizes_last_seen_in_a_bad_hour_are_forgotten() -> None:
    estimate = Estimate()
    feed(estimate, 20, {1: 0.010, 2: 0.015, 4: 0.025, 8: 0.045})
    feed(estimate, 20, {4: 3.0, 8: 6.0})
    assert best_batch(estimate) < 4
    feed(estimate, 600, {1: 0.010, 2: 0.015})
    assert best_batch(estimate) >= 4


def test_a_profile_saved_in_a_bad_hour_does_not_lock_the_batch_size() -> None:
    saved = {
        "cells": [[1000.0, 1.0, 1.0, 0.0077], [9000.0, 2.0, 1.0, 0.0102], [5.0, 3.0, 1.0, 0.6], [5.0, 13.0, 1.0, 1.9]],
        "scale": [-0.1],
        "crowd": {},
        "largest": [28, 28.0],
        "quantiles": [0.8, 1.1],
    }
    estimate = Estimate()
    restore(estimate, saved)
    assert best_batch(estimate) > 2


def test_members_of_very_different_cost_are_known_after_one_round() -> None:
    estimate = Estimate(members=3)
    for _ in range(2):
        for member, seconds in enumerate((0.1, 0.2, 0.6)):
            estimate.observe(1, 1.0, seconds, member)
    assert estimate.predict(1, 1.0, 2) == pytest.approx(0.6, rel=0.1)
    assert estimate.safe < 1.3


def test_a_batch_costs_what_the_next_size_up_costs() -> None:
    estimate = Estimate(max_batch=16, sizes=(1, 4, 16))
    for _ in range(20):
        for batch, seconds in ((1, 0.012), (3, 0.018), (9, 0.042)):
            estimate.observe(batch, 1.0, seconds)
    assert estimate.predict(2, 1.0) == estimate.predict(4, 1.0) == pytest.approx(0.018, rel=0.05)
    curve = estimate.curve(0, 1.0, LONG)
    assert curve.seconds[5] == curve.seconds[16] == pytest.approx(0.042, rel=0.05)
    assert (curve.best, curve.fastest, len(curve.seconds) - 1) == (16, 16, 16)
    assert curve.largest(curve.seconds[4] * 1.01) == 4


def test_the_next_size_up_is_tried_though_it_is_more_than_twice_as_large() -> None:
    estimate = Estimate(max_batch=16, sizes=(1, 4, 16))
    for expected in (4, 16):
        last = len(estimate.curve(0, 1.0, LONG).seconds) - 1
        assert last == expected
        estimate.observe(last, 1.0, 0.010 + 0.002 * last)
