"""The longest stall of the event loop is told, for a while."""

from __future__ import annotations

import pytest
from tests.manual_loop import PunctualLoop

from timebound.clock import ManualClock
from timebound.observe.stalls import EVERY_S, WINDOW_S, Stalls


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def loop(clock: ManualClock) -> PunctualLoop:
    return PunctualLoop(clock)  # type: ignore[abstract]


@pytest.fixture
def stalls(clock: ManualClock, loop: PunctualLoop) -> Stalls:
    stalls = Stalls(clock.now, loop)
    stalls.start()
    return stalls


def test_a_loop_that_runs_shows_no_stall(loop: PunctualLoop, stalls: Stalls) -> None:
    loop.advance(10.0)
    assert stalls.longest_s() == pytest.approx(0.0, abs=1e-6)


def test_the_longest_stall_is_told_and_forgotten_within_two_windows(loop: PunctualLoop, stalls: Stalls) -> None:
    loop.advance(1.0)
    loop.pause(0.8)
    loop.pause(0.3)
    assert 0.8 - EVERY_S <= stalls.longest_s() <= 0.8
    loop.advance(WINDOW_S - 3.0)
    assert stalls.longest_s() >= 0.8 - EVERY_S
    loop.advance(WINDOW_S)
    assert stalls.longest_s() >= 0.8 - EVERY_S
    loop.advance(WINDOW_S)
    assert stalls.longest_s() < 0.01


def test_nothing_is_watched_when_it_is_stopped(loop: PunctualLoop, stalls: Stalls) -> None:
    stalls.stop()
    assert loop.timers == 0
