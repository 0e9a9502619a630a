"""Numbers for Prometheus, gathered from events.

Counting happens on every request, reading once every few seconds. So events only add to plain integers here,
and the Prometheus library is asked to make families of them when somebody scrapes (half a microsecond per
histogram value instead of two to three).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

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


def _by_label(bounds: tuple[float, ...]) -> defaultdict[tuple[str, ...], _Histogram]:
    return defaultdict(lambda: _Histogram(bounds))


class Metrics(Collector):
    """Listens to events and shows them at /metrics. `gauges` are read at each scrape: name -> (help, read)."""

    def __init__(
        self,
        events: Events,
        gauges: dict[str, tuple[str, Callable[[], float]]],
        worker_memory: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.gauges = gauges
        self._worker_memory = worker_memory
        self._requests: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._answers: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._batches: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._turned_away: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._clients: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._lost: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._crashing: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._degradations: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._ends: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._starts = 0
        self._deaths = 0
        self._unkept: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._take_overs: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._comparisons: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._write_lag = _by_label(SECONDS)
        self._latency = _by_label(SECONDS)
        self._queue = _by_label(SECONDS)
        self._batch_s = _by_label(SECONDS)
        self._batch_size = _by_label(SIZES)
        self._prediction = _by_label(RATIOS)
        events.on(Answered, self._answered)
        events.on(Refused, self._refused)
        events.on(TurnedAway, self._on_turned_away)
        events.on(BatchStarted, self._batch_started)
        events.on(BatchFinished, self._batch_finished)
        events.on(BatchLost, self._batch_lost)
        events.on(Quarantined, self._quarantined)
        events.on(Degraded, self._degraded)
        events.on(Kept, self._kept)
        events.on(NotKept, self._not_kept)
        events.on(TakenOver, self._taken_over)
        events.on(Compared, self._compared)
        events.on(WorkerUp, self._worker_up)
        events.on(WorkerDown, self._worker_down)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for own in (ProcessCollector, PlatformCollector, GCCollector):
            own(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _answered(self, event: Answered) -> None:
        model, result = event.request.model, event.result
        code = result.outcome.code or "ok"
        self._requests[model, str(event.status), code] += 1
        self._latency[model,].add(event.seconds)
        if event.request.client:
            self._clients[event.request.client, code] += 1
        if code == "ok":
            self._answers[model, result.quality, result.source] += 1
            self._queue[model,].add(result.queue_s)

    def _refused(self, event: Refused) -> None:
        self._requests[event.model, str(event.status), event.code] += 1
        self._latency[event.model,].add(event.seconds)
        if event.client:
            self._clients[event.client, event.code] += 1

    def _on_turned_away(self, event: TurnedAway) -> None:
        self._turned_away[event.code,] += 1

    def _batch_started(self, event: BatchStarted) -> None:
        self._batches[event.model, event.reason] += 1
        self._batch_size[event.model,].add(event.size)

    def _batch_finished(self, event: BatchFinished) -> None:
        self._batch_s[event.model,].add(event.seconds)
        self._ends[event.model, str(event.members), event.reason] += 1
        self._prediction[event.model,].add(event.seconds / event.predicted_s if event.predicted_s else 1.0)

    def _degraded(self, event: Degraded) -> None:
        self._degradations[event.model, event.quality, event.reason] += event.count

    def _batch_lost(self, event: BatchLost) -> None:
        self._lost[event.model, event.loss] += 1

    def _quarantined(self, event: Quarantined) -> None:
        self._crashing[event.model,] += 1

    def _kept(self, event: Kept) -> None:
        self._write_lag[event.model,].add(event.seconds)

    def _not_kept(self, event: NotKept) -> None:
        self._unkept[event.model, event.reason] += 1

    def _taken_over(self, event: TakenOver) -> None:
        self._take_overs[event.model,] += 1

    def _compared(self, event: Compared) -> None:
        self._comparisons[event.model, event.version, event.verdict] += 1

    def _worker_up(self, event: WorkerUp) -> None:
        self._starts += 1

    def _worker_down(self, event: WorkerDown) -> None:
        self._deaths += not event.was_asked

    def collect(self) -> Iterator[Metric]:
        yield _counter("requests", "Requests by final status and code.", ("model", "status", "code"), self._requests)
        yield _counter(
            "turned_away", "Clients stopped before their request reached a model.", ("code",), self._turned_away
        )
        yield _counter("client_requests", "Requests by API key and final code.", ("client", "code"), self._clients)
        yield _counter("answers", "Answers by quality and source.", ("model", "quality", "source"), self._answers)
        yield _counter(
            "batches", "Batches by why they were released at their size.", ("model", "reason"), self._batches
        )
        yield _counter(
            "batch_ends", "Batches by members run and why they ended.", ("model", "members", "reason"), self._ends
        )
        yield _counter(
            "degraded",
            "Requests given less than the full answer, and why.",
            ("model", "quality", "reason"),
            self._degradations,
        )
        yield _counter("batches_lost", "Batches whose worker died, and how.", ("model", "loss"), self._lost)
        yield _counter("quarantined", "Bodies set aside because they crash their worker.", ("model",), self._crashing)
        yield _counter("results_not_kept", "Results that Redis did not get.", ("model", "reason"), self._unkept)
        yield _counter("take_overs", "Requests taken over from a server that died.", ("model",), self._take_overs)
        yield _counter(
            "shadow_answers",
            "Answers of versions that get copies, compared with those that were sent.",
            ("model", "version", "verdict"),
            self._comparisons,
        )
        yield _counter("worker_starts", "Workers that became ready.", (), {(): self._starts})
        yield _counter("worker_deaths", "Workers that ended without being asked.", (), {(): self._deaths})
        yield _histogram("request_seconds", "From arrival to the answer written.", self._latency)
        yield _histogram("queue_seconds", "From arrival to the batch's start.", self._queue)
        yield _histogram("batch_seconds", "From sending a batch to having it back.", self._batch_s)
        yield _histogram("batch_size", "Requests in a batch.", self._batch_size)
        yield _histogram("batch_prediction_ratio", "Real over predicted seconds of a batch.", self._prediction)
        yield _histogram("store_write_seconds", "From a result to its being in Redis.", self._write_lag)
        for name, (text, read) in self.gauges.items():
            yield GaugeMetricFamily(f"timebound_{name}", text, value=read())
        memory = GaugeMetricFamily("timebound_worker_memory_bytes", "Resident memory by worker.", labels=("worker",))
        for worker, held in self._worker_memory().items():
            memory.add_metric((worker,), held)
        yield memory


def _counter(name: str, text: str, labels: tuple[str, ...], values: dict[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(f"timebound_{name}", text, labels=labels)
    for label, value in values.items():
        family.add_metric(label, value)
    return family


def _histogram(name: str, text: str, values: dict[tuple[str, ...], _Histogram]) -> Metric:
    family = HistogramMetricFamily(f"timebound_{name}", text, labels=("model",))
    for label, histogram in values.items():
        family.add_metric(label, histogram.buckets(), histogram.total)
    return family
