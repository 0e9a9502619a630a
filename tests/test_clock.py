"""The clocks: the real one never goes back, the manual one moves only when told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.clock import Clock, ManualClock, MonotonicClock


def test_the_real_clock_never_goes_back() -> None:
    clock: Clock = MonotonicClock()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(5.0)
    assert [clock.now(), clock.now()] == [5.0, 5.0]


def test_a_manual_clock_starts_at_zero_unless_told() -> None:
    assert ManualClock().now() == 0.0


def test_advance_returns_the_new_time() -> None:
    clock = ManualClock(1.0)
    assert clock.advance(0.5) == 1.5
    assert clock.now() == 1.5


@given(st.floats(max_value=0, exclude_max=True, allow_nan=False))
def test_a_manual_clock_refuses_to_go_back(seconds: float) -> None:
    clock = ManualClock(10.0)
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(seconds)
    assert clock.now() == 10.0
