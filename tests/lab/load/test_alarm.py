from __future__ import annotations

from tests.manual_loop import ManualLoop

from timebound.clock import ManualClock
from timebound.lab.load.alarm import Alarm


def test_calls_are_made_at_their_times_in_order() -> None:
    clock = ManualClock()
    loop = ManualLoop(clock)  # type: ignore[abstract]
    alarm = Alarm(loop, clock)
    heard: list[str] = []
    alarm.at(2.0, heard.append, "second")
    alarm.at(1.0, heard.append, "first")
    alarm.at(2.0, heard.append, "third, of the same time")
    loop.advance(0.9)
    assert heard == []
    loop.advance(0.1)
    assert heard == ["first"]
    loop.advance(1.0)
    assert heard == ["first", "second", "third, of the same time"]


def test_a_call_may_ask_for_the_next_one_and_a_time_in_the_past_is_now() -> None:
    clock = ManualClock(10.0)
    loop = ManualLoop(clock)  # type: ignore[abstract]
    alarm = Alarm(loop, clock)
    heard: list[float] = []

    def tick() -> None:
        heard.append(clock.now())
        alarm.at(clock.now() + 1.0, tick)

    alarm.at(3.0, tick)
    for _ in range(3):
        loop.advance(1.0)
    assert heard == [11.0, 12.0, 13.0]


def test_a_closed_alarm_is_silent() -> None:
    clock = ManualClock()
    loop = ManualLoop(clock)  # type: ignore[abstract]
    alarm = Alarm(loop, clock)
    heard: list[int] = []
    alarm.at(1.0, heard.append, 1)
    alarm.close()
    loop.advance(5.0)
    assert heard == []
    assert loop.timers == 0
