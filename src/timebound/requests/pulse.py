"""Finds out how late this process is woken: a timer, again and again while somebody waits, none when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timebound.clock import Clock

EVERY_S = 0.02
_OVERDUE_S = 0.005
"""A beat so late shows that the loop stood still; a busy one is a little late all the time."""


class Pulse:
    """Calls `beat(late_s, now)` every few milliseconds for as long as `is_needed` says so."""

    def __init__(
        self,
        beat: Callable[[float, float], None],
        *,
        is_needed: Callable[[], bool],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._beat = beat
        self._is_needed = is_needed
        self._clock = clock
        self._loop = loop
        self._due = 0.0
        self._behind_until = 0.0
        self.is_running = False

    def is_behind(self, now: float) -> bool:
        """Whether what is read now may have lain unread: the beat is overdue, or has just been, or there is none."""
        return now - self._due > _OVERDUE_S or now < self._behind_until or not self.is_running

    def start(self) -> None:
        """Somebody waits from now on. Until the first beat nobody knows whether the loop stood still before."""
        self._behind_until = self._clock.now() + EVERY_S
        self._go_on()

    def _go_on(self) -> None:
        self.is_running = True
        self._due = self._clock.now() + EVERY_S
        self._loop.call_later(EVERY_S, self._fire)

    def _fire(self) -> None:
        now = self._clock.now()
        late_s = max(0.0, now - self._due)
        if late_s > _OVERDUE_S:
            self._behind_until = now + late_s  # who came while it stood still is read from now on
        self._beat(late_s, now)
        self.is_running = False
        if self._is_needed():
            self._go_on()
