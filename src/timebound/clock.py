"""The only reader of time. Everything that decides by time is handed a `Clock`."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from numbers import Real
from typing import Protocol


class Clock(Protocol):
    """Seconds on a monotonic clock. On one Linux machine all processes share it."""

    def now(self) -> float: ...


Wall = Callable[[], float]
"""Seconds since 1970, for people to read; nothing is decided by it."""

wall: Wall = time.time


def is_length(value: object) -> bool:
    """Whether this is a length of time: a number of seconds above zero, numpy's included."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < inf


class MonotonicClock:
    """The real clock."""

    __slots__ = ()

    now = staticmethod(time.monotonic)


class ThreadClock:
    """Processor time of the thread that asks: what others do on its core does not count."""

    __slots__ = ()

    now = staticmethod(time.thread_time)


class ManualClock:
    """A clock that stands still until it is moved; for tests and the simulator."""

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward by `seconds` and return the new time."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now += seconds
        return self._now
