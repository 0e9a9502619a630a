"""What one model, or all together, was asked and answered, second by second for ten minutes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from math import nan
from typing import Any

from timebound.events import Answered, BatchStarted, Refused
from timebound.observe.judged import is_in_time, is_ours
from timebound.observe.rings import Ring

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
        self._seen: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        self._batches = self._items = 0
        self._latencies = [0] * (len(_BOUNDS) + 1)
        self._timed = 0

    def add(self, other: Pace) -> None:
        """Count also what another counted in this second."""
        for key, count in other._seen.items():
            self._seen[key] += count
        self._latencies = [one + more for one, more in zip(self._latencies, other._latencies, strict=True)]
        self._timed += other._timed
        self._batches += other._batches
        self._items += other._items

    def turn(self) -> None:
        """The second is over."""
        row = [*self._sorted().values(), *(self._quantile_ms(share) for share in (0.5, 0.95, 0.99))]
        self.ring.put(row)
        self.last = dict(zip(self.ring.names, row, strict=True))
        self._clear()

    def answered(self, event: Answered) -> None:
        """A model's answer, or an item's own error."""
        result = event.result
        self._seen[result.quality, result.source, result.outcome.code, event.status, is_in_time(event)] += 1
        self._latencies[bisect_left(_BOUNDS, event.seconds)] += 1
        self._timed += 1

    def refused(self, event: Refused) -> None:
        """Nobody's answer."""
        self._seen["", "", event.code, event.status, False if is_ours(event) else None] += 1

    def started(self, event: BatchStarted) -> None:
        """A batch went out."""
        self._batches += 1
        self._items += event.size

    def _sorted(self) -> dict[str, int]:
        """What was counted, by column."""
        counts = dict.fromkeys(COUNTED, 0)
        counts["batches"], counts["items"] = self._batches, self._items
        for (quality, source, code, status, in_time), count in self._seen.items():
            counts["asked"] += count
            counts["due"] += count * (in_time is not None)
            counts["in_time"] += count * bool(in_time)
            if code:
                counts["refused" if status in (429, 503, 504) else "failed"] += count
                counts[f"code_{code}" if f"code_{code}" in counts else "code_other"] += count
            else:
                counts[str(quality)] += count
                counts[str(source)] += count
        return counts

    def _quantile_ms(self, share: float) -> float:
        if not self._timed:
            return nan
        wanted, reached = share * self._timed, 0
        for place, found in enumerate(self._latencies):
            reached += found
            if reached >= wanted and found:
                return round(_BOUNDS[min(place, len(_BOUNDS) - 1)] * 1e3, 3)
        return nan
