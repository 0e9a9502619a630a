"""The numbers that handlers of model archives report, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timebound.events import Events, HandlersMeasured
from timebound.types import Measured

_MOST = 2_000
"""Numbers that are kept, of all models together; each model's names are bounded where they come from."""


class HandlerNumbers(Collector):
    """Listens, and shows counts, sums and last values by the handlers' own names."""

    def __init__(self, events: Events) -> None:
        self._counts: dict[tuple[str, str], float] = {}
        self._values: dict[tuple[str, str, str], tuple[int, float, float]] = {}
        events.on(HandlersMeasured, self._heard)

    def _heard(self, event: HandlersMeasured) -> None:
        for row in event.rows:
            if len(self._counts) + len(self._values) < _MOST or self._knows(row):
                self._add(row)

    def _knows(self, row: Measured) -> bool:
        return (row.model, row.name) in self._counts or (row.model, row.name, row.unit) in self._values

    def _add(self, row: Measured) -> None:
        if row.kind == "counter":
            self._counts[row.model, row.name] = self._counts.get((row.model, row.name), 0.0) + max(0.0, row.total)
        else:
            count, total, _ = self._values.get((row.model, row.name, row.unit), (0, 0.0, 0.0))
            self._values[row.model, row.name, row.unit] = (count + row.count, total + row.total, row.last)

    def collect(self) -> Iterator[Metric]:
        if not self._counts and not self._values:
            return
        counts = CounterMetricFamily("timebound_handler_counts", "Counters of handlers.", labels=("model", "name"))
        for labels, total in self._counts.items():
            counts.add_metric(labels, total)
        told = ("model", "name", "unit")
        values = SummaryMetricFamily("timebound_handler_values", "Times, sizes and the like of handlers.", labels=told)
        last = GaugeMetricFamily("timebound_handler_last", "The last of each of these values.", labels=told)
        for names, (count, total, newest) in self._values.items():
            values.add_metric(names, count, total)
            last.add_metric(names, newest)
        yield from (counts, values, last)
