"""How late the process is woken, and whose request may have lain unread."""

from __future__ import annotations

from tests.manual_loop import PunctualLoop

from timebound.clock import ManualClock
from timebound.requests.margin import EVERY_S, Pulse


def test_everybody_read_right_after_an_idle_time_may_have_waited() -> None:
    clock = ManualClock(100.0)
    loop = PunctualLoop(clock)  # type: ignore[abstract]
    beats: list[float] = []
    pulse = Pulse(lambda late_s, now: beats.append(late_s), is_needed=lambda: True, clock=clock, loop=loop)
    assert pulse.is_behind(clock.now()), "the first"
    pulse.start()
    assert pulse.is_behind(clock.now()), "those read with it"
    loop.advance(EVERY_S)
    assert beats == [0.0]
    assert not pulse.is_behind(clock.now()), "a beat in time: the loop runs"


def test_after_a_late_beat_requests_may_have_waited_for_as_long_as_it_was_late() -> None:
    clock = ManualClock(100.0)
    loop = PunctualLoop(clock)  # type: ignore[abstract]
    pulse = Pulse(lambda late_s, now: None, is_needed=lambda: True, clock=clock, loop=loop)
    pulse.start()
    loop.advance(EVERY_S)
    clock.advance(EVERY_S + 0.5)
    assert pulse.is_behind(clock.now())
    loop.run_due()
    assert pulse.is_behind(clock.now() + 0.4)
    loop.advance(0.6)
    assert not pulse.is_behind(clock.now())
