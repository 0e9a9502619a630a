"""The arrival rate that decides about the order."""

import pytest

from timebound.scheduler.load import ArrivalRate, RateSince


@pytest.mark.parametrize("elapsed_s", [0.5, 2.0, 60.0])
def test_a_rate_since_a_moment_is_right_from_the_start(elapsed_s: float) -> None:
    since, faded = RateSince(4.0), ArrivalRate(4.0)
    since.add(100.0, 9.0)  # long past
    since.restart(10.0)
    for step in range(int(elapsed_s * 100)):
        for rate in (since, faded):
            rate.add(0.015, 10.0 + step / 100)
    assert since.rate(10.0 + elapsed_s) == pytest.approx(1.5, rel=0.03)
    assert elapsed_s > 10 or faded.rate(10.0 + elapsed_s) < 1.0
