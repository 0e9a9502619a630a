"""Calls at points in time, to about a tenth of a millisecond; an event loop's own timers count whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Any

from timebound.clock import Clock

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Times(ctypes.Structure):
    """struct itimerspec: interval, then first expiry; seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "s", "ns"))


class Alarm:
    """Any number of calls on one timer of the kernel; `clock` must be the monotonic one then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()  # calls of the same time keep their order
        self._set_for = float("inf")
        self._file = _open_timer()
        self._times = _Times()
        self._timer: asyncio.TimerHandle | None = None
        if self._file is not None:
            try:
                loop.add_reader(self._file, self._rung)
            except NotImplementedError:  # a loop without files, such as one with a manual clock
                os.close(self._file)
                self._file = None

    def future(self) -> asyncio.Future[None]:
        """Something to await, on the loop whose time this is."""
        return self._loop.create_future()

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call then, or in the loop's next turn if that has passed."""
        heappush(self._due, (when, next(self._numbers), call, arguments))
        if when < self._set_for:
            self._set(when)

    def every(self, seconds: float, call: Callable[[float], None]) -> None:
        """Call again and again, with the moment it was due; the next time counts from the end of the last call."""
        due = self._clock.now() + seconds
        self.at(due, self._again, seconds, call, due)

    def _again(self, seconds: float, call: Callable[[float], None], due: float) -> None:
        call(due)
        self.every(seconds, call)

    def close(self) -> None:
        """Forget all calls."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None

    def ring(self) -> None:
        """Make the calls that are due."""
        self._set_for = float("inf")
        now = self._clock.now()
        while self._due and self._due[0][0] <= now:
            _, _, call, arguments = heappop(self._due)
            call(*arguments)
        if self._due and self._due[0][0] < self._set_for:
            self._set(self._due[0][0])

    def _rung(self) -> None:
        with suppress(BlockingIOError):  # set anew since it went off
            os.read(self._file or 0, 8)
        self.ring()

    def _set(self, when: float) -> None:
        self._set_for = when
        if self._file is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, when - self._clock.now()), self.ring)
            return
        # Zero would switch the timer off; a time in the past goes off at once.
        nanoseconds = max(1, int(when * 1e9))
        self._times.s, self._times.ns = divmod(nanoseconds, 10**9)
        _LIBC.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(self._times), None)


def _open_timer() -> int | None:
    """A timer as a file; None where the system has none, and the loop's own timers must do."""
    if not hasattr(_LIBC, "timerfd_create"):
        return None
    file = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return file if file >= 0 else None
