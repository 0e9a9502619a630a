"""Two versions side by side: sums of each, and what differs, with intervals that hold the truth in 95 of 100 cases."""

from __future__ import annotations

from collections import Counter
from math import exp, inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec

_Z = NormalDist().inv_cdf(0.975)
_MOST_LABELS = 200
_OTHER = "other labels"
_LEAST = 10
"""Of each; of fewer nothing is said."""


class Interval(msgspec.Struct, frozen=True):
    """A figure, and between which two it is."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether a difference is one: zero lies outside."""
        return self.low > 0 or self.high < 0


class Moments(msgspec.Struct):
    """Mean and variance of numbers, without the numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count a number."""
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else inf


class Side(msgspec.Struct):
    """What one version did; as large after a million requests as after ten."""

    due: int = 0
    in_time: int = 0
    log_s: Moments = msgspec.field(default_factory=Moments)
    """Logarithms of seconds to the answer, of those that were computed."""
    sure: Moments = msgspec.field(default_factory=Moments)
    labels: Counter[str] = msgspec.field(default_factory=Counter)
    right: int = 0
    wrong: int = 0

    def took(self, seconds: float) -> None:
        """Count a computed answer."""
        self.log_s.add(log(max(1e-6, seconds)))

    def told(self, label: str, confidence: float | None) -> None:
        """Count what an answer says."""
        if confidence is not None:
            self.sure.add(confidence)
        if label:
            is_known = label in self.labels or len(self.labels) < _MOST_LABELS
            self.labels[label if is_known else _OTHER] += 1

    def shown(self) -> dict[str, object]:
        """For people and programs."""
        judged = self.right + self.wrong
        return {
            "requests": self.due,
            "in_time": share(self.in_time, self.due) if self.due else None,
            "ms": round(1e3 * exp(self.log_s.mean), 3) if self.log_s.count else None,
            "confidence": round(self.sure.mean, 4) if self.sure.count else None,
            "labels": self.labels.most_common(5),
            "right": share(self.right, judged) if judged else None,
            "judged": judged,
        }


class Paired(msgspec.Struct):
    """What a version said of copies, beside the answers that were sent."""

    copies: int = 0
    same: int = 0
    labelled: int = 0
    same_label: int = 0
    surer: Moments = msgspec.field(default_factory=Moments)
    """How much surer it was of each."""
    not_computed: int = 0

    def shown(self) -> dict[str, object]:
        """For people and programs."""
        return {
            "copies": self.copies,
            "not_computed": self.not_computed,
            "same": share(self.same, self.copies) if self.copies else None,
            "same_label": share(self.same_label, self.labelled) if self.labelled else None,
            "confidence": _of_mean(self.surer) if self.surer.count >= _LEAST else None,
        }


class Differences(NamedTuple):
    """Of a version from another; None where there is too little to say."""

    in_time: Interval | None
    """Points of share."""
    time: Interval | None
    """Its time to the answer over the other's, less 1: 0.1 is a tenth longer."""
    confidence: Interval | None
    label: tuple[str, Interval] | None
    """The label whose share differs most, in an interval that allows for having chosen it."""
    right: Interval | None


def differences(base: Side, other: Side) -> Differences:
    """What the other has more, or less, than the base."""
    judged = base.right + base.wrong, other.right + other.wrong
    return Differences(
        _of_shares(base.in_time, base.due, other.in_time, other.due),
        _ratio(base.log_s, other.log_s),
        _of_means(base.sure, other.sure),
        _of_labels(base.labels, other.labels),
        _of_shares(base.right, judged[0], other.right, judged[1]),
    )


def share(hits: int, count: int, z: float = _Z) -> Interval:
    """A share by Wilson."""
    part, extra = hits / count, z * z / count
    middle, width = part + extra / 2, z * sqrt(part * (1 - part) / count + extra / (4 * count))
    return _rounded(part, max(0.0, (middle - width) / (1 + extra)), min(1.0, (middle + width) / (1 + extra)))


def _of_shares(hits: int, count: int, others: int, of: int, z: float = _Z) -> Interval | None:
    """By Newcombe, from two intervals by Wilson."""
    if count < _LEAST or of < _LEAST:
        return None
    one, two = share(hits, count, z), share(others, of, z)
    off = two.value - one.value
    low = off - sqrt((two.value - two.low) ** 2 + (one.high - one.value) ** 2)
    return _rounded(off, low, off + sqrt((two.high - two.value) ** 2 + (one.value - one.low) ** 2))


def _of_mean(moments: Moments) -> Interval:
    return _rounded(moments.mean, moments.mean - _Z * moments.error, moments.mean + _Z * moments.error)


def _of_means(one: Moments, two: Moments) -> Interval | None:
    if min(one.count, two.count) < _LEAST:
        return None
    off, width = two.mean - one.mean, _Z * sqrt(one.error**2 + two.error**2)
    return _rounded(off, off - width, off + width)


def _ratio(one: Moments, two: Moments) -> Interval | None:
    off = _of_means(one, two)
    return None if off is None else _rounded(exp(off.value) - 1, exp(off.low) - 1, exp(off.high) - 1)


def _of_labels(one: Counter[str], two: Counter[str]) -> tuple[str, Interval] | None:
    known = sorted({*one, *two})
    if not known:
        return None
    count, of, z = one.total(), two.total(), NormalDist().inv_cdf(1 - 0.025 / len(known))
    found = [(label, _of_shares(one[label], count, two[label], of, z)) for label in known]
    sure = [(label, interval) for label, interval in found if interval is not None]
    return max(sure, key=lambda pair: _clearness(pair[1]), default=None)


def _clearness(off: Interval) -> tuple[float, float]:
    """How far its interval is from zero, then how large it is."""
    return max(off.low, -off.high), abs(off.value)


def _rounded(value: float, low: float, high: float) -> Interval:
    return Interval(round(value, 5), round(low, 5), round(high, 5))
