"""Has a stream of values changed? A reference of some thousand, and bets against it that pay only if it has.

Values are put into bins, whose shares the reference says. A *tilt* says how much likelier each bin is in one kind of
change: the mean is higher or lower, one bin is fuller or emptier. While nothing has changed, a tilt's factors have the
mean 1, so that a capital multiplied by them, with 1 more put in at each value (Shiryaev and Roberts), is as much as the
number of values on average. After a change of its kind it grows exponentially. The statistic, the mean of all tilts, is
above `LIMIT` once in so many unchanged values at most, however long one looks. An e-detector (Shin, Ramdas, Rinaldo).
The shares are estimated, so the factors are made a little smaller, by a standard error.

Plain numbers in lists: numpy would take the gateway 16 MiB and a fifth of a second, and is no faster for so few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import exp, fsum, inf, log, nextafter, sqrt

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
    numbers = sorted(map(float, values))
    mean = fsum(numbers) / len(numbers)
    sd = sqrt(fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    if sd <= 1e-9 * max(1.0, abs(mean)):
        return None
    edges = _edges(numbers)
    ends = [0, *(bisect_right(numbers, edge) for edge in edges), len(numbers)]
    counts = [end - start for start, end in pairwise(ends)]
    means = [
        fsum(numbers[start:end]) / (end - start) if end > start else default
        for (start, end), default in zip(pairwise(ends), [*edges, numbers[-1]], strict=True)
    ]
    values_in_sd = [(each - mean) / sd for each in means]
    return Reference(_shares(counts), edges, values_in_sd, mean=mean, sd=sd, count=len(numbers))


def _edges(numbers: Sequence[float]) -> list[float]:
    """The largest value of each bin but the last, for sorted numbers: quantiles, and those that are frequent alone."""
    quantiles = {numbers[int(quantile * (len(numbers) - 1))] for quantile in _QUANTILES}
    count = _FREQUENT * len(numbers)
    frequent = {each for each in quantiles if bisect_right(numbers, each) - bisect_left(numbers, each) >= count}
    edges = quantiles | {nextafter(each, -inf) for each in frequent}
    return sorted(edge for edge in edges if edge < numbers[-1])


def _shares(counts: Sequence[int]) -> list[float]:
    whole = sum(counts) + 0.5 * len(counts)
    return [(count + 0.5) / whole for count in counts]


def of_labels(marks: Sequence[str]) -> Reference | None:
    """The reference that these labels make; None if most are new, and so tell nothing."""
    seen = Counter(marks)
    own = [name for name, count in seen.most_common(_MOST_LABELS) if count >= _LEAST_SEEN]
    rarer = sorted(set(seen) - set(own))
    once = sum(count == 1 for count in seen.values())  # by Good and Turing, what is still unseen
    if not own or once > _MOST_UNSEEN * len(marks):
        return None
    counts = [*(seen[name] for name in own), sum(seen[name] for name in rarer), once]
    return Reference(_shares(counts), labels=own, rarer=rarer, count=len(marks))


class Detector:
    """Follows one stream against its reference; its memory does not grow."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._places = {name: place for place, name in enumerate(reference.labels)}
        self._places |= dict.fromkeys(reference.rarer, len(reference.labels))
        self._shares = reference.shares
        self._tilts = _tilts(reference)
        self._capitals = [0.0] * len(self._tilts[0])
        self._limit = LIMIT * len(self._capitals)  # of the sum, where each tilt has the same part
        self._recent = list(self._shares)
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
        self._recent = [share * (1 - 1 / _RECENT) for share in self._recent]
        self._recent[place] += 1 / _RECENT
        tilts = self._tilts[place]
        self._capitals = [(capital + 1.0) * tilt for capital, tilt in zip(self._capitals, tilts, strict=True)]
        if sum(self._capitals) < self._limit:
            return False
        self._capitals = [0.0] * len(self._capitals)
        return True

    @property
    def evidence(self) -> float:
        """How near an alarm is: 0 to 1, in decades."""
        mean = max(1.0, sum(self._capitals) / len(self._capitals))
        return min(1.0, log(mean) / log(LIMIT))

    @property
    def psi(self) -> float:
        """The population stability index of the last some hundred values: shown, never alarmed on."""
        more = 1e-3  # of a bin that is empty now
        whole_now, whole_usual = (sum(shares) + more * len(shares) for shares in (self._recent, self._shares))
        now = [(share + more) / whole_now for share in self._recent]
        usual = [(share + more) / whole_usual for share in self._shares]
        return sum((here - there) * log(here / there) for here, there in zip(now, usual, strict=True))

    @property
    def moved(self) -> tuple[int, float, float]:
        """The bin whose share has changed most: its place, its share now and before."""
        recent = self._recent
        place = max(range(len(recent)), key=lambda place: abs(recent[place] - self._shares[place]))
        return place, recent[place], self._shares[place]


def _tilts(reference: Reference) -> list[list[float]]:
    """By bin, the factors of all tilts: their mean over the shares is at most 1."""
    shares, error = reference.shares, 1.0 / sqrt(reference.count)
    rows = [_of_the_mean(reference, tilt, error) for tilt in (*_MEANS, *(-mean for mean in _MEANS)) if reference.values]
    for place, share in enumerate(shares):
        at_most = share + sqrt(share) * error
        at_least = max(0.0, share - sqrt(share) * error)
        rows += [_at(place, len(shares), 1 - part + part / at_most, 1 - part) for part in _FULLER]
        if _EMPTIER_FROM <= share < 1:
            rows.append(_at(place, len(shares), 0.5, (1 - 0.5 * at_least) / (1 - at_least)))
    return [list(factors) for factors in zip(*rows, strict=True)]


def _of_the_mean(reference: Reference, tilt: float, error: float) -> list[float]:
    powers = [tilt * value for value in reference.values]
    most = max(powers)
    whole = sum(share * exp(power - most) for share, power in zip(reference.shares, powers, strict=True))
    return [exp(power - most - log(whole) - abs(tilt) * error) for power in powers]


def _at(place: int, count: int, here: float, elsewhere: float) -> list[float]:
    return [here if other == place else elsewhere for other in range(count)]
