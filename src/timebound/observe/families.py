"""Counts and histograms that cost little to add to; the Prometheus library sees them when somebody scrapes.

Counting happens on every request, reading once every few seconds: adding to plain integers takes half a microsecond,
the library's own histograms two to three.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

from timebound.observe.rings import Bounded
from timebound.types import Question, Trace

_LONGEST = 128
"""Characters that OpenMetrics allows the names and values of an exemplar in all."""
MOST_COUNTS, MOST_HISTOGRAMS = 4_096, 512
"""Of one family, by their labels: models and versions that come and go for years leave no more behind."""


class Histogram:
    """How many values were at most as large as each bound, and for each bound the last request, and the last traced."""

    __slots__ = ("bounds", "counts", "examples", "total", "traced")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.examples: list[tuple[str, float] | None] = [None] * (len(bounds) + 1)
        self.traced: list[tuple[str, float, str] | None] = [None] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, request_id: str = "", trace: Trace | None = None) -> None:
        """Count a value, which may belong to a request, and that to a trace."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value
        if trace is not None and trace.is_sampled:
            self.traced[place] = (request_id, value, trace.trace_id)
        elif request_id:
            self.examples[place] = (request_id, value)

    def add_all(self, values: Sequence[float]) -> None:
        """Count values of nobody in particular."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    def add_each(self, values: Sequence[float], questions: Iterable[Question]) -> None:
        """Count the value of each of these requests."""
        bounds, counts, examples = self.bounds, self.counts, self.examples
        for value, question in zip(values, questions, strict=True):
            place = bisect_left(bounds, value)
            counts[place] += 1
            if question.trace is None:
                examples[place] = (question.id, value)
            elif question.trace.is_sampled:
                self.traced[place] = (question.id, value, question.trace.trace_id)
        self.total += sum(values)

    def buckets(self) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """As the library takes them."""
        reached = 0
        rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for place, bound in enumerate((*map(str, map(float, self.bounds)), "+Inf")):
            reached += self.counts[place]
            example = _exemplar(self.traced[place] or self.examples[place])
            rows.append((bound, float(reached)) if example is None else (bound, float(reached), example))
        return rows


def _exemplar(example: tuple[str, float, str] | tuple[str, float] | None) -> Exemplar | None:
    if example is None:
        return None
    request_id, value, *trace_id = example
    labels = {"trace_id": trace_id[0]} if trace_id else {}
    if sum(map(len, ("request_id", request_id, *labels, *labels.values()))) <= _LONGEST:
        labels["request_id"] = request_id
    return Exemplar(labels, value) if labels else None


Counts: TypeAlias = Bounded[tuple[Any, ...], float]
Histograms: TypeAlias = Bounded[tuple[str, ...], Histogram]


class Families:
    """All counts and histograms of a server, in the order in which they were declared."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._counters: list[tuple[str, str, tuple[str, ...], Counts]] = []
        self._histograms: list[tuple[str, str, tuple[str, ...], Histograms]] = []

    def counter(self, name: str, text: str, *labels: str) -> Counts:
        """One more family of counts, by the values of its labels."""
        counts: Counts = Bounded(int, MOST_COUNTS)
        if not labels:
            counts[()] = 0  # shown from the start
        self._counters.append((name, text, labels, counts))
        return counts

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histograms:
        """One more family of histograms, by the values of its labels."""
        histograms: Histograms = Bounded(lambda: Histogram(bounds), MOST_HISTOGRAMS)
        self._histograms.append((name, text, labels, histograms))
        return histograms

    def collect(self) -> Iterator[Metric]:
        """What the library shows."""
        for name, text, labels, counts in self._counters:
            counter = CounterMetricFamily(self._prefix + name, text, labels=labels)
            for values, count in counts.items():
                counter.add_metric(values, count)
            yield counter
        for name, text, labels, histograms in self._histograms:
            family = HistogramMetricFamily(self._prefix + name, text, labels=labels)
            for values, histogram in histograms.items():
                family.add_metric(values, histogram.buckets(), histogram.total)
            yield family
