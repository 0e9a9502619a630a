"""How long a batch of a given size will take, learned from the batches that ran."""

from __future__ import annotations

from bisect import bisect_left

_WEIGHT = 0.2
"""Share of a new measurement in its bucket's running mean."""


class Estimate:
    """Running means at sizes 1, 2, 4, 8 ...; straight lines between them, and never below what was seen smaller."""

    def __init__(self, first_guess_s: float) -> None:
        self.largest_seen = 1
        self._sizes: list[int] = [1]
        self._means: list[float] = [first_guess_s]

    def observe(self, size: int, seconds: float) -> None:
        """Learn that a batch of `size` took `seconds`."""
        self.largest_seen = max(self.largest_seen, size)
        bucket = 1 << (size.bit_length() - 1)
        scaled = seconds * bucket / size  # to the bucket's own size; the error is below one octave's curvature
        place = bisect_left(self._sizes, bucket)
        if place < len(self._sizes) and self._sizes[place] == bucket:
            self._means[place] += _WEIGHT * (scaled - self._means[place])
        else:
            self._sizes.insert(place, bucket)
            self._means.insert(place, scaled)

    def predict(self, size: int) -> float:
        """Seconds a batch of `size` is expected to take."""
        place = bisect_left(self._sizes, size)
        if place < len(self._sizes) and self._sizes[place] == size:
            return self._means[place]
        if place == len(self._sizes):
            return self._means[-1] * size / self._sizes[-1]
        low, high = place - 1, place
        share = (size - self._sizes[low]) / (self._sizes[high] - self._sizes[low])
        return self._means[low] + share * (self._means[high] - self._means[low])
