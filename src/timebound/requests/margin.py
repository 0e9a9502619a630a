"""How late this process is, and the time to keep free before a deadline because of that."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from timebound.clock import Clock

_WINDOW = 1024
_ENOUGH = 128
_WORST = 4
"""So many of the window's slowest tails are accidents (a paused machine); the next one is what to expect."""
_CEILING_S = 0.100
_HALF_LIFE_S = 2.0
"""A stall is expected again for a while: what is kept free because of it halves in this time."""
_STALLS = 2.0
"""A request may be read one stall late, of which a little is never known, and its answer be written one stall late."""
_BUSY_S = 0.005
"""So late a busy process is woken all the time: the floor covers that, and it is no stall."""
_STRAIN_S = 0.030
"""Kept free while processes start, which is when cores are short: more than their start was seen to cost."""


class Margin:
    """A high quantile of the last thousand tails: from a result being ready to its last byte handed to the kernel.

    Every tail counts: how long the answers of one batch took to write, and how late a timer fired.
    `start_s` holds until enough was seen, and it is never below `floor_s`: clients and the kernel are late too.
    A stall of this process (`woke`) counts at once, and is forgotten by and by.
    """

    def __init__(self, start_s: float, floor_s: float = 0.005) -> None:
        self.seconds = start_s
        """What to keep free now."""
        self.is_strained = False
        """Whether processes are being started."""
        self._floor_s = floor_s
        self._usual_s = start_s
        self._stall_s = 0.0
        self._stalled_at = 0.0
        self._tails: deque[float] = deque()
        self._ordered: list[float] = []

    def observe(self, tail_s: float) -> None:
        """A tail was seen."""
        self._tails.append(tail_s)
        insort(self._ordered, tail_s)
        if len(self._tails) > _WINDOW:
            del self._ordered[bisect_left(self._ordered, self._tails.popleft())]
        if len(self._tails) >= _ENOUGH:
            self._usual_s = min(_CEILING_S, max(self._floor_s, 1.25 * self._ordered[-1 - _WORST]))
            self._settle()

    def woke(self, late_s: float, now: float) -> None:
        """This process was woken so late; to be told again and again while somebody waits."""
        left_s = self._stall_s * 0.5 ** ((now - self._stalled_at) / _HALF_LIFE_S)
        self._stall_s, self._stalled_at = max(left_s, min(late_s - _BUSY_S, _CEILING_S / _STALLS)), now
        self._settle()

    def _settle(self) -> None:
        strain_s = _STRAIN_S if self.is_strained else 0.0
        self.seconds = max(self._usual_s, _STALLS * self._stall_s, strain_s)


EVERY_S = 0.02
"""Between two beats."""
_OVERDUE_S = 0.005
"""A beat so late shows that the loop stood still; a busy one is a little late all the time."""


class Pulse:
    """Finds out how late this process is woken: calls `beat(late_s, now)` again and again while `is_needed` says so."""

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
