"""Finds out how late this process is woken: a timer, again and again while somebody waits, none when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timebound.clock import Clock

EVERY_S = 0.02
_OVERDUE_S = 0.002


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
        self.is_running = False

    def is_behind(self, now: float) -> bool:
        """Whether the event loop may be late: its beat is overdue, or there is none."""
        return now - self._due > _OVERDUE_S or not self.is_running

    def start(self) -> None:
        """Somebody waits from now on."""
        self.is_running = True
        self._due = self._clock.now() + EVERY_S
        self._loop.call_later(EVERY_S, self._fire)

    def _fire(self) -> None:
        now = self._clock.now()
        self._beat(max(0.0, now - self._due), now)
        self.is_running = False
        if self._is_needed():
            self.start()
