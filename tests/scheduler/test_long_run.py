"""What an estimate knows after a long time on a machine that does not change on average."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebound.scheduler.estimate import Estimate

OFTEN, RARE = (1, 2, 3, 5, 8, 13), 40
LONG_TIME = 20_000

Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "calm": lambda rng: rng.lognormvariate(0.0, 0.05),
    "noisy": lambda rng: rng.lognormvariate(0.0, 0.3),
    "wild": lambda rng: rng.lognormvariate(0.0, 0.6),
    "stragglers": lambda rng: rng.lognormvariate(0.0, 0.1) * (rng.uniform(2.0, 40.0) if rng.random() < 0.05 else 1.0),
    "quick ones": lambda rng: rng.lognormvariate(0.0, 0.1) * (0.3 if rng.random() < 0.05 else 1.0),
}


def seconds_of(batch: int, size: float = 1.0) -> float:
    return 0.0002 + 0.00005 * batch * size


def nearly(estimate: Estimate, batch: int, times: float, member: int = 0) -> bool:
    predicted = estimate.predict(batch, 1.0, member)
    return seconds_of(batch) / times < predicted / (1.0 + member) < seconds_of(batch) * times


def holds_its_split(estimate: Estimate) -> bool:
    cells = estimate.shape.cells.values()
    is_true = all(0.25 < seconds / seconds_of(round(batch), size) < 4.0 for _, batch, size, seconds in cells)
    return abs(estimate.drift) < math.log(2.0) and is_true


@pytest.mark.parametrize("name", NOISES)
def test_drift_and_cells_stay_where_they_belong_for_a_long_time(name: str) -> None:
    estimate, rng, noise = Estimate(), random.Random(7), NOISES[name]
    for number in range(LONG_TIME):
        batch = RARE if number % 400 == 0 else rng.choice(OFTEN)
        estimate.observe(batch, 1.0, seconds_of(batch) * noise(rng))
    assert holds_its_split(estimate)
    assert all(nearly(estimate, batch, 1.2 if name == "calm" else 2.0) for batch in (*OFTEN, RARE))


@pytest.mark.parametrize("name", ["calm", "noisy", "wild"])
def test_a_size_that_never_runs_again_is_known_as_it_was(name: str) -> None:
    estimate, rng, noise = Estimate(), random.Random(7), NOISES[name]
    for _ in range(20):
        estimate.observe(RARE, 1.0, seconds_of(RARE))
    for _ in range(LONG_TIME):
        batch = rng.choice(OFTEN)
        estimate.observe(batch, 1.0, seconds_of(batch) * noise(rng))
    assert nearly(estimate, RARE, 1.6)


@pytest.mark.parametrize("often_slow", [0.01, 0.03, 0.1])
def test_what_others_scatter_in_spells_is_never_taken_from_a_size_that_does_not_run(often_slow: float) -> None:
    estimate, rng, is_slow = Estimate(), random.Random(7), False
    for _ in range(20):
        estimate.observe(RARE, 1.0, seconds_of(RARE))
    for _ in range(LONG_TIME):  # usually alone in its batch, and slow for some batches beside another program
        is_slow = rng.random() < (0.6 if is_slow else often_slow)
        factor = rng.uniform(3.0, 15.0) if is_slow else 1.0
        estimate.observe(1, 1.0, seconds_of(1) * factor * rng.lognormvariate(0.0, 0.15))
    assert nearly(estimate, RARE, 2.0)


def test_members_and_crowds_that_are_all_alike_take_no_part_of_the_speed_away() -> None:
    estimate, rng = Estimate(members=2), random.Random(3)
    for _ in range(LONG_TIME // 2):
        batch, busy = rng.choice(OFTEN), rng.choice((1, 2))
        for member in (0, 1):
            seconds = (1 + member) * seconds_of(batch) * rng.lognormvariate(0.0, 0.4)
            estimate.observe(batch, 1.0, seconds, member, busy)
    assert holds_its_split(estimate)
    assert all(nearly(estimate, batch, 1.6, member) for batch in OFTEN for member in (0, 1))


def test_items_of_mixed_size_move_no_cell_against_the_drift() -> None:
    estimate, rng = Estimate(), random.Random(5)
    for _ in range(LONG_TIME):
        batch, size = rng.choice(OFTEN), rng.uniform(1.0, 4.0)
        estimate.observe(batch, size, seconds_of(batch, size) * rng.lognormvariate(0.0, 0.1))
    assert holds_its_split(estimate)
    assert all(nearly(estimate, batch, 1.3) for batch in OFTEN)


def test_a_machine_that_is_slow_in_bursts_leaves_the_split_as_it_was() -> None:
    estimate, rng, is_slow = Estimate(), random.Random(11), False
    for _ in range(20):
        estimate.observe(RARE, 1.0, seconds_of(RARE))
    for _ in range(LONG_TIME):
        is_slow = rng.random() < (0.98 if is_slow else 0.005)
        batch = rng.choice(OFTEN)
        estimate.observe(batch, 1.0, seconds_of(batch) * rng.lognormvariate(0.0, 0.2) * (3.0 if is_slow else 1.0))
    for _ in range(200):
        batch = rng.choice(OFTEN)
        estimate.observe(batch, 1.0, seconds_of(batch) * rng.lognormvariate(0.0, 0.2))
    assert holds_its_split(estimate)
    assert all(nearly(estimate, batch, 2.0) for batch in (*OFTEN, RARE))


def test_a_lasting_change_goes_into_every_cell_and_the_drift_is_free_again() -> None:
    estimate, rng = Estimate(), random.Random(2)
    for factor in (1.0, 5.0):
        for _ in range(3000):
            batch = rng.choice(OFTEN if factor > 1.0 else (*OFTEN, RARE))
            estimate.observe(batch, 1.0, factor * seconds_of(batch) * rng.lognormvariate(0.0, 0.05))
    assert abs(estimate.drift) < math.log(1.2)
    assert all(nearly(estimate, batch, 6.0) and not nearly(estimate, batch, 4.0) for batch in OFTEN)


@given(spread=st.floats(0.0, 0.7), seed=st.integers(0, 1000), at_once=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_however_much_batches_scatter_the_drift_does_not_run_away(spread: float, seed: int, at_once: int) -> None:
    estimate, rng = Estimate(), random.Random(seed)
    for _ in range(4000):
        batch = rng.choice(OFTEN)
        seconds = seconds_of(batch) * rng.lognormvariate(0.0, spread)
        estimate.observe(batch, 1.0, seconds, busy=rng.randint(1, at_once))
    assert abs(estimate.drift) < math.log(2.5)
