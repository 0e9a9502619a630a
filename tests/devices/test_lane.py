"""The lane: one thread, the oldest batch first, two stages on the device at a time."""

from __future__ import annotations

import threading

import pytest

from timebound.devices.lane import Lane


class Ended:
    """A stage that ends when it is told to."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def wait(self) -> None:
        assert self.end.wait(10)


def test_everything_runs_on_one_thread_and_calls_within_calls_in_place() -> None:
    lane = Lane()
    outer, inner = lane.call(lambda: (threading.get_ident(), lane.call(threading.get_ident)))
    assert outer == inner == lane.call(threading.get_ident) != threading.get_ident()


def test_the_third_stage_waits_for_the_end_of_the_first_and_the_oldest_batch_goes_first() -> None:
    lane, started = Lane(), list[str]()
    stages = [Ended() for _ in range(4)]

    def stage(name: str, number: int) -> Ended:
        started.append(name)
        return stages[number]

    lane.submit(1, lambda: stage("a1", 0)).result(10)
    lane.submit(1, lambda: stage("a2", 1)).result(10)
    late = lane.submit(2, lambda: stage("b1", 2))
    early = lane.submit(1, lambda: stage("a3", 3))
    assert started == ["a1", "a2"]
    stages[0].end.set()
    early.result(10)
    assert not late.done()
    stages[1].end.set()
    late.result(10)
    assert started == ["a1", "a2", "a3", "b1"]


def test_who_asked_hears_of_an_error_and_the_lane_goes_on() -> None:
    lane = Lane()
    with pytest.raises(ZeroDivisionError):
        lane.call(lambda: 1 // 0)
    assert lane.call(lambda: 1) == 1
