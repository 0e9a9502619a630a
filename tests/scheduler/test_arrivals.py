from __future__ import annotations

import pytest
from benchmarks.tools.arrivals import Users, bursts, constant, poisson, spike, text_size
from benchmarks.tools.machine import CPU_LIKE
from benchmarks.tools.simulate import Setting, Simulation

from timebound.lab.simulate import quantile


def test_poisson_arrivals_have_the_rate_and_are_repeatable() -> None:
    first, second = (list(poisson(constant(50.0, ramp_s=0.0), 50.0, 100.0, seed=4)) for _ in range(2))
    assert first == second
    assert len(first) == pytest.approx(5000, rel=0.05)


def test_bursts_keep_the_mean_rate() -> None:
    rate = bursts(10.0)
    assert sum(rate(i / 100) for i in range(400)) / 400 == pytest.approx(10.0, rel=0.01)
    assert rate(0.1) == 30.0


def test_a_spike_is_high_only_while_it_lasts() -> None:
    rate = spike(10.0, 99.0, 5.0, 6.0)
    assert [rate(t) for t in (4.9, 5.0, 6.0)] == [10.0, 99.0, 10.0]


def test_text_sizes_have_a_mean_of_one_and_a_long_tail() -> None:
    sizes = [a.size for a in poisson(constant(100.0, ramp_s=0.0), 100.0, 50.0, size=text_size)]
    assert sum(sizes) / len(sizes) == pytest.approx(1.0, abs=0.08)
    assert quantile(sizes, 0.95) > 2.0


def test_users_wait_for_their_answer_before_they_think() -> None:
    setting = Setting({"model": CPU_LIKE}, until=20.0, judge_from=0.0)
    simulation = Simulation(setting, users=[Users(10, "model", think_s=(1.0, 1.0))])
    report = simulation.run()
    assert report.requests == pytest.approx(10 * setting.judge_until / 1.03, rel=0.1)
    assert report.in_time == 1.0
