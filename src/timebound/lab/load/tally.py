"""What came of a run: counts, latencies and how they went over time, as flat figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from timebound.lab.load.attempts import End, Question
from timebound.lab.load.histogram import Histogram

PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999}
# For the curve: ever nearer to one.
_CURVE = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999]
_BY_MODEL = ("full", "partial")
_FIRST_WIDTH_S = 0.1
_MOST_BINS = 150


@dataclass(slots=True)
class _Bin:
    """The requests that came up in one stretch of time, the answers that came in it, and who waited."""

    answers: Histogram = field(default_factory=Histogram)
    requests: int = 0
    good: int = 0
    answered: int = 0
    waited_s: float = 0.0
    """Seconds of all requests together that were under way."""

    def merge(self, other: _Bin) -> None:
        self.answers.merge(other.answers)
        self.requests += other.requests
        self.good += other.good
        self.answered += other.answered
        self.waited_s += other.waited_s


class Timeline:
    """A run in at most 150 stretches; they grow longer with it."""

    def __init__(self) -> None:
        self.width_s = _FIRST_WIDTH_S
        self._bins: list[_Bin] = []

    def at(self, since_s: float) -> _Bin:
        """The stretch that a moment falls into."""
        place = int(max(0.0, since_s) / self.width_s)
        while place >= _MOST_BINS:
            self._halve()
            place = int(since_s / self.width_s)
        while place >= len(self._bins):
            self._bins.append(_Bin())
        return self._bins[place]

    def wait(self, since_s: float, until_s: float) -> None:
        """A request was under way from one moment to the other."""
        self.at(until_s)  # from here on the stretches keep their length
        start = max(0.0, since_s)
        for place in range(int(start / self.width_s), int(until_s / self.width_s) + 1):
            begin, end = place * self.width_s, (place + 1) * self.width_s
            self._bins[place].waited_s += max(0.0, min(until_s, end) - max(start, begin))

    def _halve(self) -> None:
        self.width_s *= 2
        for place in range(0, len(self._bins) - 1, 2):
            self._bins[place].merge(self._bins[place + 1])
        self._bins = self._bins[::2]

    def rows(self, seconds: float = inf) -> list[dict[str, float]]:
        """Each stretch by the second it began, of a run that took so long."""
        found = []
        for place, each in enumerate(self._bins):
            spans = (*each.answers.quantiles([0.5, 0.99]), each.answers.longest)
            times = zip(("p50_ms", "p99_ms", "max_ms"), (round(value * 1000, 3) for value in spans), strict=True)
            row = {"at_s": round(place * self.width_s, 3), "requests": each.requests, "good": each.good}
            width_s = max(min(self.width_s, seconds - place * self.width_s), self.width_s / 100)
            rates = {"offered_rps": each.requests, "answered_rps": each.answered, "under_way": each.waited_s}
            per_s = {name: round(count / width_s, 3) for name, count in rates.items()}
            found.append({**row, **dict(times), **per_s})
        return found


class Tally:
    """Counts the questions that came up from `since` on; rates are of what ended before `until`.

    Goodput is the share of all requests that the model answered (in full or in part), rightly, within `deadline_s` of
    the moment they came up. `in_time` counts fallbacks too.
    """

    def __init__(self, deadline_s: float, since: float, until: float = inf) -> None:
        self._deadline_s = deadline_s
        self._since = since
        self._until = until
        self._last_end = since
        self.answers = Histogram()
        self.lags = Histogram()
        self.timeline = Timeline()
        self.requests = 0
        self.good = 0
        self._counts: Counter[str] = Counter()
        self._ends: Counter[End] = Counter()
        self._statuses: Counter[int] = Counter()
        self._qualities: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()

    def add(self, question: Question) -> None:
        """Count a question that is over."""
        if question.intended < self._since:
            return
        last, latency = question.last, question.latency
        ended = question.intended + latency
        self._last_end = max(self._last_end, ended)
        self.requests += 1
        self._counts["resends"] += len(question.attempts) - 1
        self._ends[last.end] += 1
        # Up to here it is the client's fault; a connection that takes its time to open is the server's.
        self.lags.add(last.begun - last.intended)
        stretch = self.timeline.at(question.intended - self._since)
        stretch.requests += 1
        self.timeline.wait(question.intended - self._since, min(ended, self._until) - self._since)
        if last.end is End.REFUSED:
            self._statuses[last.status] += 1
        elif last.end is End.LOST:
            self._losses[last.why] += 1
        if last.end is not End.ANSWERED:
            return
        self.answers.add(latency)
        stretch.answers.add(latency)
        self.timeline.at(min(ended, self._until) - self._since).answered += 1
        self._qualities[last.quality] += 1
        if last.source:
            self._sources[last.source] += 1
        is_by_then = ended <= self._until
        self._counts["answered by then"] += is_by_then
        if not last.is_right:
            self._counts["wrong"] += 1
        elif latency > self._deadline_s:
            self._counts["late"] += 1
        else:
            self._counts["in time"] += 1
            if last.quality in _BY_MODEL:
                self.good += 1
                self._counts["members"] += last.members
                stretch.good += 1
                self._counts["good by then"] += is_by_then

    def end(self, now: float) -> None:
        """The run was cut short: rates are of the time up to now."""
        self._until = min(self._until, now)

    @property
    def seconds(self) -> float:
        """How long the part that counts was."""
        return max(1e-9, (self._last_end if self._until == inf else self._until) - self._since)

    def figures(self) -> dict[str, float]:
        """The flat figures; shares are of all requests, or of the answers where it says so."""
        count, answered = self.requests or 1, self.answers.count or 1
        values = self.answers.quantiles(list(PERCENTILES.values()))
        flat: dict[str, float] = {
            "requests": self.requests,
            "seconds": self.seconds,
            "offered_rps": self.requests / self.seconds,
            "answered_rps": self._counts["answered by then"] / self.seconds,
            "goodput": self.good / count,
            "goodput_rps": self._counts["good by then"] / self.seconds,
            "in_time": self._counts["in time"] / count,
            "mean_members": self._counts["members"]
            / (self.good or 1),  # of what counts as goodput; 0 if the server does not say
            **{name: value * 1000 for name, value in zip(PERCENTILES, values, strict=True)},
            "min_ms": self.answers.shortest * 1000,
            "max_ms": self.answers.longest * 1000,
            "mean_ms": self.answers.mean * 1000,
            "failed": self.requests - self.answers.count,
            "refused": self._ends[End.REFUSED],
            "timed_out": self._ends[End.TIMED_OUT],
            "lost": self._ends[End.LOST],
            **{name: self._counts[name] for name in ("wrong", "late", "resends")},
            **{f"{name}_share": self._qualities[name] / answered for name in ("full", "partial", "fallback")},
        }
        return {name: round(value, 6) for name, value in flat.items()}

    def details(self) -> dict[str, Any]:
        """What does not fit into flat figures."""
        return {
            "statuses": {str(status): count for status, count in sorted(self._statuses.items())},
            "sources": dict(self._sources),
            "losses": dict(self._losses),
            "percentiles": self._curve(),
            "timeline": self.timeline.rows(self.seconds),
        }

    def _curve(self) -> list[Sequence[float]]:
        """(share, ms), as far as there are requests enough to say."""
        shares = [share for share in _CURVE if (1 - share) * self.answers.count >= 1]
        values = self.answers.quantiles(shares)
        return [(share, round(value * 1000, 3)) for share, value in zip(shares, values, strict=True)]
