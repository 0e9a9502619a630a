"""What autoscalers do with a recorded load, in the simulation of benchmarks/tools/scaling.py."""

from __future__ import annotations

from math import inf

import pytest
from benchmarks.tools.scaling import (
    Recorded,
    all_flaps,
    desired,
    flaps,
    hpa,
    hpa_more_s,
    ray,
    ray_more_s,
    rule_says_more_s,
    tracking_more_s,
)

RISING = Recorded(1, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.5])


@pytest.mark.parametrize(
    ("current", "ratio", "wanted"), [(1, 0.7, 1), (1, 0.71, 2), (2, 1.5, 5), (4, 0.1, 1), (2, 0, 1)]
)
def test_the_rule_asks_for_so_many_servers_that_each_has_the_target_load(
    current: int, ratio: float, wanted: int
) -> None:
    assert desired(current, ratio) == wanted


def test_the_rule_asks_for_more_in_the_first_second_above_the_target() -> None:
    assert rule_says_more_s(RISING) == 3
    assert rule_says_more_s(Recorded(1, [0.5] * 20)) == inf


def test_kubernetes_asks_every_15_seconds_and_not_within_a_tenth_of_the_target() -> None:
    assert hpa(Recorded(2, [0.75] * 40), 0, 40) == [2] * 40
    assert hpa(Recorded(1, [1.4] * 40), 5, 40) == [1] * 5 + [2] * 35
    assert 15 < hpa_more_s(RISING) <= 15 + 4


def test_target_tracking_wants_three_minutes_above_the_target() -> None:
    assert tracking_more_s(Recorded(1, [1.4] * 10)) == 180


def test_ray_hears_every_two_seconds_and_waits_for_three_before_it_adds_and_120_before_it_takes_away() -> None:
    assert ray_more_s(RISING) == 4 + 3
    assert ray(Recorded(2, [0.75] * 60), 1800)[-1] == 3
    fewer = ray(Recorded(4, [0.1] * 60), 300)
    assert (fewer[119], fewer[120], fewer[-1]) == (4, 1, 1)


def test_servers_that_are_taken_away_and_brought_back_count_as_flaps() -> None:
    assert all_flaps(Recorded(2, [0.75] * 60)) == 0
    assert flaps(Recorded(2, [0.75, 0.3, 0.75, 0.3])) == 2
