"""Numbers for Prometheus, gathered from events.

Counting happens on every request, reading once every few seconds. So events only add to plain integers here,
and the Prometheus library is asked to make families of them when somebody scrapes (half a microsecond per
histogram value instead of two to three).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timebound.events import (
    Answered,
    BatchFinished,
    BatchLost,
    BatchStarted,
    Compared,
    Degraded,
    Events,
    Kept,
    NotKept,
    Quarantined,
    Refused,
    TakenOver,
    TurnedAway,
    WorkerDown,
    WorkerUp,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIOS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        reached, rows = 0, []
        for bound, found in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            reached += found
            rows.append((bound, float(reached)))
        return rows


_Counts: TypeAlias = defaultdict[tuple[str, ...], int]
_Histograms: TypeAlias = defaultdict[str, _Histogram]


class Metrics(Collector):
    """Listens to events and shows them at /metrics. `gauges` are read at each scrape: name -> (help, read)."""

    def __init__(
        self,
        events: Events,
        gauges: dict[str, tuple[str, Callable[[], float]]],
        worker_memory: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._events = events
        self.gauges = gauges
        self._worker_memory = worker_memory
        self._counters: list[tuple[str, str, tuple[str, ...], _Counts]] = []
        self._histograms: list[tuple[str, str, _Histograms]] = []
        self._requests = self._counter("requests", "Requests by final status and code.", "model", "status", "code")
        self._each(TurnedAway, "turned_away", "Clients stopped before their request reached a model.", "code")
        self._clients = self._counter("client_requests", "Requests by API key and final code.", "client", "code")
        self._answers = self._counter("answers", "Answers by quality and source.", "model", "quality", "source")
        self._each(BatchStarted, "batches", "Batches by why they were released at their size.", "model", "reason")
        self._ends = self._counter(
            "batch_ends", "Batches by members run and why they ended.", "model", "members", "reason"
        )
        self._degradations = self._counter(
            "degraded", "Requests given less than the full answer, and why.", "model", "quality", "reason"
        )
        self._each(BatchLost, "batches_lost", "Batches whose worker died, and how.", "model", "loss")
        self._each(Quarantined, "quarantined", "Bodies set aside because they crash their worker.", "model")
        self._each(NotKept, "results_not_kept", "Results that Redis did not get.", "model", "reason")
        self._each(TakenOver, "take_overs", "Requests taken over from a server that died.", "model")
        compared = "Answers of versions that get copies, compared with those that were sent."
        self._each(Compared, "shadow_answers", compared, "model", "version", "verdict")
        self._each(WorkerUp, "worker_starts", "Workers that became ready.")
        self._deaths = self._counter("worker_deaths", "Workers that ended without being asked.")
        self._latency = self._histogram("request_seconds", "From arrival to the answer written.", SECONDS)
        self._queue = self._histogram("queue_seconds", "From arrival to the batch's start.", SECONDS)
        self._batch_s = self._histogram("batch_seconds", "From sending a batch to having it back.", SECONDS)
        self._batch_size = self._histogram("batch_size", "Requests in a batch.", SIZES)
        self._prediction = self._histogram("batch_prediction_ratio", "Real over predicted seconds of a batch.", RATIOS)
        self._write_lag = self._histogram("store_write_seconds", "From a result to its being in Redis.", SECONDS)
        events.on(Answered, self._answered)
        events.on(Refused, self._refused)
        events.on(BatchStarted, lambda event: self._batch_size[event.model].add(event.size))
        events.on(BatchFinished, self._batch_finished)
        events.on(Degraded, self._degraded)
        events.on(Kept, lambda event: self._write_lag[event.model].add(event.seconds))
        events.on(WorkerDown, self._worker_down)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for own in (ProcessCollector, PlatformCollector, GCCollector):
            own(registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> _Counts:
        """One more family of counts, by the values of its labels."""
        counts: _Counts = defaultdict(int)
        if not labels:
            counts[()] = 0  # shown from the start
        self._counters.append((name, text, labels, counts))
        return counts

    def _each(self, kind: type[Any], name: str, text: str, *labels: str) -> None:
        """Count events of a kind by those of their fields that the labels name."""
        counts = self._counter(name, text, *labels)

        def count(event: Any) -> None:
            counts[tuple([getattr(event, label) for label in labels])] += 1

        self._events.on(kind, count)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> _Histograms:
        """One more family of histograms, by model."""
        histograms: _Histograms = defaultdict(lambda: _Histogram(bounds))
        self._histograms.append((name, text, histograms))
        return histograms

    def render(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _answered(self, event: Answered) -> None:
        model, result = event.request.model, event.result
        code = result.outcome.code or "ok"
        self._requests[model, str(event.status), code] += 1
        self._latency[model].add(event.seconds)
        if event.request.client:
            self._clients[event.request.client, code] += 1
        if code == "ok":
            self._answers[model, result.quality, result.source] += 1
            self._queue[model].add(result.queue_s)

    def _refused(self, event: Refused) -> None:
        self._requests[event.model, str(event.status), event.code] += 1
        self._latency[event.model].add(event.seconds)
        if event.client:
            self._clients[event.client, event.code] += 1

    def _batch_finished(self, event: BatchFinished) -> None:
        self._batch_s[event.model].add(event.seconds)
        self._ends[event.model, str(event.members), event.reason] += 1
        self._prediction[event.model].add(event.seconds / event.predicted_s if event.predicted_s else 1.0)

    def _degraded(self, event: Degraded) -> None:
        self._degradations[event.model, event.quality, event.reason] += event.count

    def _worker_down(self, event: WorkerDown) -> None:
        self._deaths[()] += not event.was_asked

    def collect(self) -> Iterator[Metric]:
        for name, text, labels, counts in self._counters:
            counter = CounterMetricFamily(f"timebound_{name}", text, labels=labels)
            for values, count in counts.items():
                counter.add_metric(values, count)
            yield counter
        for name, text, histograms in self._histograms:
            family = HistogramMetricFamily(f"timebound_{name}", text, labels=("model",))
            for model, histogram in histograms.items():
                family.add_metric((model,), histogram.buckets(), histogram.total)
            yield family
        for name, (text, read) in self.gauges.items():
            yield GaugeMetricFamily(f"timebound_{name}", text, value=read())
        memory = GaugeMetricFamily("timebound_worker_memory_bytes", "Resident memory by worker.", labels=("worker",))
        for worker, held in self._worker_memory().items():
            memory.add_metric((worker,), held)
        yield memory
