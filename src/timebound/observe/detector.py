"""Has a stream of values changed? A reference of some thousand, and bets against it that pay only if it has.

Values are put into bins, whose shares the reference says. A *tilt* says how much likelier each bin is in one kind of
change: the mean is higher or lower, one bin is fuller or emptier. While nothing has changed, a tilt's factors have the
mean 1, so that a capital multiplied by them, with 1 more put in at each value (Shiryaev and Roberts), is as much as the
number of values on average. After a change of its kind it grows exponentially. The statistic, the mean of all tilts, is
above `LIMIT` once in so many unchanged values at most, however long one looks. An e-detector (Shin, Ramdas, Rinaldo).
The shares are estimated, so the factors are made a little smaller, by a standard error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from timebound.observe.reference import Reference

LIMIT = 1e9
"""Unchanged values for one false alarm."""
_QUANTILES = (0.01, 0.02, 0.05, *(step / 10 for step in range(1, 10)), 0.95, 0.98, 0.99)
_FREQUENT = 0.02
"""Single numbers of at least this share have a bin of their own."""
_MEANS = (0.25, 0.5, 1.0)
"""Tilts of the mean, up and down, in standard deviations."""
_FULLER = (0.1, 0.3)
"""Tilts towards a bin: so much of all goes there."""
_EMPTIER_FROM = 0.1
"""Bins of at least this share may also become half as full."""
_MOST_LABELS = 30
_LEAST_SEEN = 5
_MOST_UNSEEN = 0.5
"""Where more of the labels than this are new each time, they are texts rather than labels."""
_RECENT = 500
"""What came before the last so many values hardly counts in the shares of now."""
_JUST_NOW = 100
"""The same for the mean, which is to have moved when there is an alarm."""


def of_numbers(values: Sequence[float]) -> Reference | None:
    """The reference that these numbers make; None if they are all the same."""
    numbers = np.sort(np.asarray(values, float))
    mean, sd = float(numbers.mean()), float(numbers.std())
    if sd <= 1e-9 * max(1.0, abs(mean)):
        return None
    edges = np.unique(np.quantile(numbers, _QUANTILES, method="lower"))
    frequent = edges[[(numbers == edge).mean() >= _FREQUENT for edge in edges]]
    edges = np.union1d(edges, np.nextafter(frequent, -np.inf))
    edges = edges[edges < numbers[-1]]
    places = np.searchsorted(edges, numbers)
    counts = np.bincount(places, minlength=len(edges) + 1)
    sums = np.bincount(places, numbers, minlength=len(edges) + 1)
    shares = (counts + 0.5) / (counts + 0.5).sum()
    means = np.where(counts, sums / np.maximum(counts, 1), [*edges, numbers[-1]])
    return Reference(
        shares.tolist(), edges.tolist(), ((means - mean) / sd).tolist(), mean=mean, sd=sd, count=len(numbers)
    )


def of_labels(marks: Sequence[str]) -> Reference | None:
    """The reference that these labels make; None if most are new, and so tell nothing."""
    seen = Counter(marks)
    own = [name for name, count in seen.most_common(_MOST_LABELS) if count >= _LEAST_SEEN]
    rarer = sorted(set(seen) - set(own))
    once = sum(count == 1 for count in seen.values())  # by Good and Turing, what is still unseen
    if not own or once > _MOST_UNSEEN * len(marks):
        return None
    counts = np.array([*(seen[name] for name in own), sum(seen[name] for name in rarer), once], float)
    shares = (counts + 0.5) / (counts + 0.5).sum()
    return Reference(shares.tolist(), labels=own, rarer=rarer, count=len(marks))


class Detector:
    """Follows one stream against its reference; its memory does not grow."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._places = {name: place for place, name in enumerate(reference.labels)}
        self._places |= dict.fromkeys(reference.rarer, len(reference.labels))
        self._shares = np.array(reference.shares)
        self._tilts = _tilts(reference)
        self._capitals = np.zeros(self._tilts.shape[1])
        self._limit = LIMIT * self._tilts.shape[1]  # of the sum, where each tilt has the same part
        self._recent = self._shares.copy()
        self.mean = reference.mean
        """Of the last hundred numbers or so."""
        self.count = 0

    def add(self, value: float | str) -> bool:
        """Take a number, or a label's mark; whether it is an alarm, after which the detector begins anew."""
        if isinstance(value, str):
            place = self._places.get(value, len(self._shares) - 1)
        else:
            place = bisect_left(self.reference.edges, value)
            self.mean += (value - self.mean) / _JUST_NOW
        self.count += 1
        self._recent *= 1 - 1 / _RECENT
        self._recent[place] += 1 / _RECENT
        self._capitals += 1.0
        self._capitals *= self._tilts[place]
        if self._capitals.sum() < self._limit:
            return False
        self._capitals[:] = 0.0
        return True

    @property
    def evidence(self) -> float:
        """How near an alarm is: 0 to 1, in decades."""
        mean = max(1.0, float(self._capitals.mean()))
        return min(1.0, float(np.log(mean) / np.log(LIMIT)))

    @property
    def psi(self) -> float:
        """The population stability index of the last some hundred values: shown, never alarmed on."""
        now, usual = self._recent + 1e-3, self._shares + 1e-3
        now, usual = now / now.sum(), usual / usual.sum()
        return float(((now - usual) * np.log(now / usual)).sum())

    @property
    def moved(self) -> tuple[int, float, float]:
        """The bin whose share has changed most: its place, its share now and before."""
        place = int(np.abs(self._recent - self._shares).argmax())
        return place, float(self._recent[place]), float(self._shares[place])


def _tilts(reference: Reference) -> Any:
    """By bin, the factors of all tilts: their mean over the shares is at most 1."""
    shares, errors = np.array(reference.shares), 1.0 / np.sqrt(reference.count)
    rows = []
    if reference.values:
        scores = np.array(reference.values)
        for tilt in (*_MEANS, *(-mean for mean in _MEANS)):
            rows.append(np.exp(tilt * scores - np.log(shares @ np.exp(tilt * scores)) - abs(tilt) * errors))
    at_most = shares + np.sqrt(shares) * errors
    at_least = np.maximum(0.0, shares - np.sqrt(shares) * errors)
    for place, share in enumerate(shares):
        here = np.arange(len(shares)) == place
        rows += [np.where(here, 1 - part + part / at_most[place], 1 - part) for part in _FULLER]
        if share >= _EMPTIER_FROM and share < 1:
            others = (1 - 0.5 * at_least[place]) / (1 - at_least[place])
            rows.append(np.where(here, 0.5, others))
    return np.ascontiguousarray(np.array(rows).T)
