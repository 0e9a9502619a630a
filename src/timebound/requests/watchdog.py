"""Finds batches that hang: one timer, set when a batch starts and not again when it finds none running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf

from timebound.clock import Clock
from timebound.scheduler.ticket import Batch

LATE_S = 0.1
"""A timer that fires later than this shows that the gateway itself stood still: reports may wait to be read."""
SECOND_LOOK_S = 0.25


class Watchdog:
    """Calls `on_hang` once for each batch that runs past its limit."""

    def __init__(
        self,
        batches: Callable[[], Iterable[Batch]],
        *,
        limit_s: Callable[[Batch], float],
        on_hang: Callable[[Batch], None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._batches = batches
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._clock = clock
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf
        self._is_second_look = False

    def watch(self, batch: Batch) -> None:
        """A batch has started."""
        at = batch.started + self._limit_s(batch)
        if at < self._at:
            self._set(at)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._look)

    def _look(self) -> None:
        now, was_due = self._clock.now(), self._at
        self._timer, self._at = None, inf
        ends = [(batch.started + self._limit_s(batch), batch) for batch in self._batches()]
        next_at = min((at for at, _ in ends if at > now), default=inf)
        if now - was_due > LATE_S and not self._is_second_look and any(at <= now for at, _ in ends):
            self._is_second_look = True
            next_at = now + SECOND_LOOK_S
        else:
            self._is_second_look = False
            for at, batch in ends:
                if at <= now:
                    self._on_hang(batch)
        if next_at < inf:
            self._set(next_at)
