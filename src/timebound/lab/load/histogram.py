"""A histogram of durations in logarithmic buckets: percentiles to a thousandth of their value, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

# Below this many microseconds each has a bucket; above, a bucket is at most a 1024th of its value wide.
_EXACT = 2048
_BITS = 11


class Histogram:
    """Counts seconds; `shortest`, `longest` and `total` are exact."""

    __slots__ = ("_counts", "_shortest", "count", "longest", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.longest = 0.0
        self._shortest = inf

    def add(self, seconds: float) -> None:
        """Count one duration; one below zero counts as zero."""
        value = int(seconds * 1e6)
        if value >= _EXACT:
            shift = value.bit_length() - _BITS
            value = value >> shift << shift
        elif value < 0:
            value = 0
        self._counts[value] = self._counts.get(value, 0) + 1
        self.count += 1
        self.total += seconds
        if seconds > self.longest:  # noqa: PLR1730 - max() takes four times as long
            self.longest = seconds
        if seconds < self._shortest:  # noqa: PLR1730
            self._shortest = seconds

    def merge(self, other: Histogram) -> None:
        """Count all that another one counted."""
        for value, count in other._counts.items():
            self._counts[value] = self._counts.get(value, 0) + count
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        self._shortest = min(self._shortest, other._shortest)

    def quantile(self, share: float) -> float:
        """The smallest duration that at least `share` of all do not exceed, in seconds; 0 if there are none."""
        return next(self.quantiles([share]))

    def quantiles(self, shares: list[float]) -> Iterator[float]:
        """The same for several shares, in rising order."""
        buckets = iter(sorted(self._counts.items()))
        seen, value = 0, 0
        for share in shares:
            # A little slack: a share such as 0.999 is not exact in binary.
            while seen < min(self.count, max(1, share * self.count - 1e-6)):
                value, count = next(buckets)
                seen += count
            yield min(_middle(value) / 1e6, self.longest)

    @property
    def shortest(self) -> float:
        """Seconds; 0 if there are none."""
        return self._shortest if self.count else 0.0

    @property
    def mean(self) -> float:
        """Seconds; 0 if there are none."""
        return self.total / self.count if self.count else 0.0


def _middle(value: int) -> float:
    """The middle of the bucket that begins with `value`."""
    if value < _EXACT:
        return value + 0.5
    return value + (1 << value.bit_length() - _BITS) / 2
