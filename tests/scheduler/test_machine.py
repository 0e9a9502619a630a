from __future__ import annotations

import random

import pytest
from benchmarks.tools.machine import CPU_LIKE, GPU_LIKE, Speed, clairvoyant_share


def test_capacity_is_that_of_the_best_batch_that_fits() -> None:
    assert CPU_LIKE.capacity(2, 1.0) == pytest.approx(99.5, rel=0.01)
    assert GPU_LIKE.capacity(2, 1.0) == pytest.approx(533, rel=0.01)


def test_company_and_noise_change_the_time_and_members_share_it() -> None:
    speed = Speed(0.01, 0.02, members=2, noise=0.0, straggler_share=0.0, crowding=0.5, member_weights=(3.0, 1.0))
    rng = random.Random(1)
    alone = [speed.draw(rng, 2, 1.0, member, busy=1) for member in (0, 1)]
    assert alone == pytest.approx([0.0375, 0.0125])
    assert speed.draw(rng, 2, 1.0, 0, busy=2) == pytest.approx(1.5 * alone[0])


def test_the_bound_is_everything_below_capacity_and_a_share_above() -> None:
    arrivals = [i / 50 for i in range(1000)]
    assert clairvoyant_share(arrivals, 1.0, rate=60.0) == 1.0
    assert clairvoyant_share(arrivals, 1.0, rate=25.0) == pytest.approx(0.5, abs=0.03)
