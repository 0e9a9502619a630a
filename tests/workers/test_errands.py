"""The understudy's desk: calls that are stuck delay nobody else."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event

from timebound.clock import MonotonicClock
from timebound.workers.errands import _THREADS, Desk, _Call

PATIENCE_S = 20.0


def test_calls_that_are_stuck_are_left_behind_and_the_others_are_served() -> None:
    stuck, done = Event(), SimpleQueue[int]()

    def run(call: _Call) -> None:
        if call.duty == "hang":
            stuck.wait(PATIENCE_S)
        done.put(call.number)

    desk = Desk(run, MonotonicClock())
    try:
        for number in range(_THREADS):
            desk.put(_Call(number, "hang", "m", memoryview(b"")))
        for number in range(100, 108):
            desk.put(_Call(number, "good", "m", memoryview(b"")))
        assert sorted(done.get(timeout=PATIENCE_S) for _ in range(8)) == list(range(100, 108))
    finally:
        stuck.set()


def test_every_call_is_served_once() -> None:
    done = SimpleQueue[int]()
    desk = Desk(lambda call: done.put(call.number), MonotonicClock())
    for number in range(50):
        desk.put(_Call(number, "good", "m", memoryview(b"")))
    assert sorted(done.get(timeout=PATIENCE_S) for _ in range(50)) == list(range(50))
