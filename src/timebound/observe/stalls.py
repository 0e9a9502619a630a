"""How long the event loop stood still: the longest that one timer was late, for whoever watches the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EVERY_S = 0.05
"""Between two looks; a stall seems shorter than it is by up to as much."""
WINDOW_S = 30.0
"""What is told is the longest of one to two of these: more than lies between two scrapes."""


class Stalls:
    """Watches from `start` to `stop`, at 20 looks a second whatever the load; `now` is the monotonic clock."""

    def __init__(self, now: Callable[[], float], loop: asyncio.AbstractEventLoop) -> None:
        self._now = now
        self._loop = loop
        self._due = self._until = 0.0
        self._longest_s = self._before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch from now on."""
        now = self._now()
        self._until = now + WINDOW_S
        self._wait(now)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def longest_s(self) -> float:
        """The longest of the last minute, or nearly that."""
        return max(self._longest_s, self._before_s)

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        return {"loop_stall_seconds": ("Longest that the event loop stood still in the last minute.", self.longest_s)}

    def _wait(self, now: float) -> None:
        self._due = now + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        now = self._now()
        if now >= self._until:
            self._before_s, self._longest_s, self._until = self._longest_s, 0.0, now + WINDOW_S
        self._longest_s = max(self._longest_s, now - self._due)
        self._wait(now)
