"""What one model, or all together, was asked and answered, second by second for ten minutes."""

from __future__ import annotations

from collections import defaultdict
from math import nan

from timebound.events import BatchStarted
from timebound.observe.rings import Ring
from timebound.observe.tally import FINE, Seen

KEPT_S = 600

REASONS = (
    "overloaded", "queue_full", "deadline_unreachable", "too_late", "deadline_missed", "rate_limited", "client_busy",
    "not_ready", "draining", "memory_full", "too_many_connections", "slow_client", "unauthorized", "store_unavailable",
    "model_failed", "crashes_worker", "bad_input",
)  # fmt: skip
"""Codes with a column of their own; all others share one. Pages have a line for each that there was, in this order."""
COUNTED = (
    "asked", "due", "in_time", "full", "partial", "fallback", "computed", "joined", "stored", "refused", "failed",
    "turned_away", "batches", "items", *(f"code_{code}" for code in REASONS), "code_other",
)  # fmt: skip
MEASURED = ("p50_ms", "p95_ms", "p99_ms")


class Pace:
    """Counts what happens in the present second; `turn` ends it."""

    def __init__(self) -> None:
        self.ring = Ring((*COUNTED, *MEASURED), KEPT_S)
        self.last: dict[str, float] = {}
        """The second that ended last, by column."""
        self._clear()

    def _clear(self) -> None:
        self._seen: defaultdict[Seen, int] = defaultdict(int)
        self._stopped: defaultdict[str, int] = defaultdict(int)
        self._batches = self._items = 0
        self._latencies = [0] * (len(FINE) + 1)
        self._timed = 0

    def add(self, other: Pace) -> None:
        """Count also what another counted in this second."""
        for key, count in other._seen.items():
            self._seen[key] += count
        for code, count in other._stopped.items():
            self._stopped[code] += count
        self.time(other._latencies)
        self._batches += other._batches
        self._items += other._items

    def turn(self) -> None:
        """The second is over."""
        row = [*self._sorted().values(), *(self._quantile_ms(share) for share in (0.5, 0.95, 0.99))]
        self.ring.put(row)
        self.last = dict(zip(self.ring.names, row, strict=True))
        self._clear()

    def count(self, kind: Seen, count: int) -> None:
        """So many answers or refusals of this kind."""
        self._seen[kind] += count

    def time(self, latencies: list[int]) -> None:
        """What answers took: how many are between each two bounds of `FINE`."""
        self._latencies = [one + more for one, more in zip(self._latencies, latencies, strict=True)]
        self._timed += sum(latencies)

    def started(self, event: BatchStarted) -> None:
        """A batch went out."""
        self._batches += 1
        self._items += event.size

    def stopped(self, code: str) -> None:
        """A client was stopped on its connection: it asked nothing yet."""
        self._stopped[code] += 1

    def _sorted(self) -> dict[str, int]:
        """What was counted, by column."""
        counts = dict.fromkeys(COUNTED, 0)
        counts["batches"], counts["items"] = self._batches, self._items
        counts["turned_away"] = sum(self._stopped.values())
        for code, count in self._stopped.items():
            counts[_column(code)] += count
        for kind, count in self._seen.items():
            counts["asked"] += count
            counts["due"] += count * (kind.in_time is not None)
            counts["in_time"] += count * bool(kind.in_time)
            if kind.code:
                counts["refused" if kind.status in (429, 503, 504) else "failed"] += count
                counts[_column(kind.code)] += count
            else:
                counts[str(kind.quality)] += count
                counts[str(kind.source)] += count
        return counts

    def _quantile_ms(self, share: float) -> float:
        if not self._timed:
            return nan
        wanted, reached = share * self._timed, 0
        for place, found in enumerate(self._latencies):
            reached += found
            if reached >= wanted and found:
                return round(FINE[min(place, len(FINE) - 1)] * 1e3, 3)
        return nan


def _column(code: str) -> str:
    return f"code_{code}" if code in REASONS else "code_other"
