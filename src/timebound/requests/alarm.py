"""Wakes the dispatcher when a device may be given its next batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

_NEAR_S = 0.0002
"""An earlier time that is as near as this to the one that is set is not worth another timer."""


class Alarm:
    """One timer: it is moved forwards, never back; who is woken too early asks again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._when = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, when: float, now: float) -> None:
        """Ring at this time, if not before."""
        if when >= self._when - _NEAR_S:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._when, self._timer = when, self._loop.call_later(max(0.0, when - now), self._fire)

    def _fire(self) -> None:
        self._when, self._timer = inf, None
        self._ring()
