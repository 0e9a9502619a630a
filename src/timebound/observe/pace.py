"""What one model, or all together, was asked and answered, second by second for ten minutes."""

from __future__ import annotations

from bisect import bisect_left
from math import nan

from timebound.events import Answered, BatchStarted, Refused
from timebound.observe.judged import is_in_time, is_ours
from timebound.observe.rings import Ring
from timebound.types import Quality, Source

KEPT_S = 600

REASONS = (
    "overloaded", "queue_full", "deadline_unreachable", "too_late", "deadline_missed", "rate_limited", "client_busy",
    "not_ready", "draining", "model_failed", "crashes_worker", "bad_input",
)  # fmt: skip
"""Codes with a column of their own; all others share one."""
COUNTED = (
    "asked", "due", "in_time", "full", "partial", "fallback", "computed", "joined", "stored", "refused", "failed",
    "batches", "items", *(f"code_{code}" for code in REASONS), "code_other",
)  # fmt: skip
MEASURED = ("p50_ms", "p95_ms", "p99_ms")

_BOUNDS: tuple[float, ...] = tuple(1e-4 * 1.08**step for step in range(181))
"""Seconds, from a tenth of a millisecond to two minutes: a percentile is right to 8 percent."""


class Pace:
    """Counts what happens in the present second; `turn` ends it."""

    def __init__(self) -> None:
        self.ring = Ring((*COUNTED, *MEASURED), KEPT_S)
        self.last: dict[str, float] = {}
        """The second that ended last, by column."""
        self._clear()

    def _clear(self) -> None:
        self._counts = dict.fromkeys(COUNTED, 0)
        self._latencies = [0] * (len(_BOUNDS) + 1)
        self._timed = 0

    def turn(self) -> None:
        """The second is over."""
        row = [*self._counts.values(), *(self._quantile_ms(share) for share in (0.5, 0.95, 0.99))]
        self.ring.put(row)
        self.last = dict(zip(self.ring.names, row, strict=True))
        self._clear()

    def answered(self, event: Answered) -> None:
        """A model's answer, or an item's own error."""
        counts, result = self._counts, event.result
        counts["asked"] += 1
        self._latencies[bisect_left(_BOUNDS, event.seconds)] += 1
        self._timed += 1
        in_time = is_in_time(event)
        if in_time is not None:
            counts["due"] += 1
            counts["in_time"] += in_time
        code = result.outcome.code
        if code:
            self._count_failure(event.status, code)
            return
        quality, source = result.quality, result.source
        counts["full" if quality is Quality.FULL else "partial" if quality is Quality.PARTIAL else "fallback"] += 1
        counts["computed" if source is Source.COMPUTED else "joined" if source is Source.JOINED else "stored"] += 1

    def refused(self, event: Refused) -> None:
        """Nobody's answer."""
        self._counts["asked"] += 1
        self._counts["due"] += is_ours(event)
        self._count_failure(event.status, event.code)

    def started(self, event: BatchStarted) -> None:
        """A batch went out."""
        self._counts["batches"] += 1
        self._counts["items"] += event.size

    def _count_failure(self, status: int, code: str) -> None:
        self._counts["refused" if status in (429, 503, 504) else "failed"] += 1
        self._counts[f"code_{code}" if f"code_{code}" in self._counts else "code_other"] += 1

    def _quantile_ms(self, share: float) -> float:
        if not self._timed:
            return nan
        wanted, reached = share * self._timed, 0
        for place, found in enumerate(self._latencies):
            reached += found
            if reached >= wanted and found:
                return round(_BOUNDS[min(place, len(_BOUNDS) - 1)] * 1e3, 3)
        return nan
