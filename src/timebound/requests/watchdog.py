"""Finds batches that hang; looks whenever the pulse beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timebound.scheduler.ticket import Batch

LATE_S = 0.1
"""A beat that is later than this shows that the gateway itself stood still: reports may wait to be read."""
SECOND_LOOK_S = 0.25
"""So long after that it looks again."""


class Watchdog:
    """Calls `on_hang` for each batch that runs past its limit; `batches` are those that nobody was called for yet."""

    def __init__(
        self,
        batches: Callable[[], Iterable[Batch]],
        *,
        limit_s: Callable[[Batch], float],
        on_hang: Callable[[Batch], None],
    ) -> None:
        self._batches = batches
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._blind_until = 0.0
        self._is_waiting = False

    def look(self, late_s: float, now: float) -> None:
        """The process was woken so late, and is awake now."""
        if late_s > LATE_S and not self._is_waiting:
            self._blind_until, self._is_waiting = now + SECOND_LOOK_S, True
        elif now >= self._blind_until:
            self._is_waiting = False
            for batch in list(self._batches()):
                if batch.started + self._limit_s(batch) <= now:
                    self._on_hang(batch)
