"""Numbers for Prometheus, gathered from events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from timebound.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Compared,
    Degraded,
    Events,
    Kept,
    NotKept,
    Quarantined,
    TakenOver,
    TurnedAway,
    Unprepared,
    WorkerDown,
    WorkerUp,
)
from timebound.observe.families import Counts, Families
from timebound.observe.gpus import GpuNumbers
from timebound.observe.handlers import HandlerNumbers
from timebound.observe.named import Named
from timebound.observe.steps import Steps
from timebound.observe.tally import SECONDS, SLACK, Tally
from timebound.types import ModelInfo

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIOS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)

_BY_VERSION = ("model", "version")
_OPEN_METRICS = "application/openmetrics-text"

Usage = Callable[[], Mapping[str, tuple[float, float]]]
"""By worker: resident bytes, and seconds of processor time."""


class Metrics(Collector):
    """Listens to events and shows them at /metrics.

    `gauges`, and `counts` of others, are read at each scrape: name -> (help, read).
    """

    def __init__(
        self,
        events: Events,
        gauges: dict[str, tuple[str, Callable[[], float]]],
        workers: Usage = dict,
        models: Mapping[str, ModelInfo] | None = None,
        gpus: GpuNumbers | None = None,
        *,
        tally: Tally | None = None,
        wall: Callable[[], float] = float,
    ) -> None:
        self._events = events
        self._tally = tally or Tally(events)
        self.gauges = gauges
        self.counts: dict[str, tuple[str, Callable[[], float]]] = {}
        self._workers = workers
        self._models: Mapping[str, ModelInfo] = {} if models is None else models
        self._named = Named(self._models)
        families = self._families = Families("timebound_")
        count, measure = families.counter, families.histogram
        self._requests = count("requests", "Requests by final status and code.", *_BY_VERSION, "status", "code")
        self._each(TurnedAway, "turned_away", "Clients stopped before their request reached a model.", "code")
        self._clients = count("client_requests", "Requests by API key and final code.", "client", "code")
        self._answers = count("answers", "Answers by quality and source.", *_BY_VERSION, "quality", "source")
        due = "Requests that were the server's to answer, by whether a model answered before the deadline."
        self._due = count("due", due, *_BY_VERSION, "in_time")
        released = "Batches by why they were released at their size."
        self._batches = count("batches", released, *_BY_VERSION, "reason")
        self._ends = count(
            "batch_ends", "Batches by members run and why they ended.", *_BY_VERSION, "members", "reason"
        )
        failed = "Seconds that requests took which got no answer, of those in request_seconds."
        self._failed_s = count("failed_seconds", failed, *_BY_VERSION)
        degraded = "Requests given less than the full answer, and why."
        self._degradations = count("degraded", degraded, *_BY_VERSION, "quality", "reason")
        self._lost = count("batches_lost", "Batches whose worker died, and how.", *_BY_VERSION, "loss")
        aside = "Bodies set aside because they crash their worker."
        self._quarantined = count("quarantined", aside, *_BY_VERSION)
        self._each(NotKept, "results_not_kept", "Results that Redis did not get.", "model", "reason")
        self._each(TakenOver, "take_overs", "Requests taken over from a server that died.", "model")
        compared = "Answers of versions that get copies, compared with those that were sent."
        self._each(Compared, "shadow_answers", compared, "model", "version", "verdict")
        self._each(WorkerUp, "worker_starts", "Workers that became ready.")
        self._deaths = count("worker_deaths", "Workers that ended without being asked.")
        written, left = "From arrival to the answer written.", "Left before the deadline; 0 if it was late."
        self._by_version = (
            measure("request_seconds", written, SECONDS, *_BY_VERSION),
            measure("deadline_slack_seconds", left, SLACK, *_BY_VERSION),
            measure("queue_seconds", "From arrival to the batch's start.", SECONDS, *_BY_VERSION),
        )
        self._batch_s = measure("batch_seconds", "From sending a batch to having it back.", SECONDS, *_BY_VERSION)
        self._batch_size = measure("batch_size", "Requests in a batch.", SIZES, *_BY_VERSION)
        told = "Real over predicted seconds of a batch."
        self._prediction = measure("batch_prediction_ratio", told, RATIOS, *_BY_VERSION)
        self._steps = Steps(families, wall)
        self._write_lag = measure("store_write_seconds", "From a result to its being in Redis.", SECONDS, "model")
        events.on(BatchStarted, self._batch_started)
        events.on(BatchFinished, self._batch_finished)
        events.on(BatchLost, self._batch_lost)
        events.on(Quarantined, self._set_aside)
        events.on(Degraded, self._degraded)
        events.on(Unprepared, lambda event: self._steps.met_unprepared(self._named(event.model)))
        events.on(Kept, lambda event: self._write_lag[event.model,].add(event.seconds))
        events.on(WorkerDown, self._worker_down)
        self._registry = self._register(HandlerNumbers(events), *([] if gpus is None else [gpus]))

    def _register(self, *others: Collector) -> CollectorRegistry:
        registry = CollectorRegistry()
        for collector in (self, *others):
            registry.register(collector)
        for own in (ProcessCollector, PlatformCollector, GCCollector):
            own(registry=registry)
        return registry

    def show(self, other: Collector) -> None:
        """Show what somebody else counts, too."""
        self._registry.register(other)

    def _each(self, kind: type[Any], name: str, text: str, *labels: str) -> None:
        """Count events of a kind by those of their fields that the labels name."""
        counts: Counts = self._families.counter(name, text, *labels)

        def count(event: Any) -> None:
            counts[tuple([getattr(event, label) for label in labels])] += 1

        self._events.on(kind, count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their media type: OpenMetrics with exemplars for who accepts that, else Prometheus' text."""
        if _OPEN_METRICS in accept:
            text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _batch_started(self, event: BatchStarted) -> None:
        which = self._named(event.model)
        self._batches[*which, event.reason] += 1
        self._batch_size[which].add(event.size)

    def _batch_finished(self, event: BatchFinished) -> None:
        which = self._named(event.model)
        self._batch_s[which].add(event.seconds)
        self._ends[*which, str(event.members), event.reason] += 1
        self._prediction[which].add(event.seconds / event.predicted_s if event.predicted_s else 1.0)
        self._steps.finished(event, which)

    def _batch_lost(self, event: BatchLost) -> None:
        self._lost[*self._named(event.model), event.loss] += 1

    def _set_aside(self, event: Quarantined) -> None:
        self._quarantined[self._named(event.model)] += 1

    def _degraded(self, event: Degraded) -> None:
        self._degradations[*self._named(event.model), event.quality, event.reason] += event.count

    def _worker_down(self, event: WorkerDown) -> None:
        self._deaths[()] += not event.was_asked

    def _sort(self) -> None:
        """Make families of what was counted in one."""
        for family in (self._requests, self._answers, self._due, self._clients, self._failed_s, *self._by_version):
            family.clear()
        for kind, count in self._tally.seen():
            which = kind.model, kind.version
            self._requests[*which, str(kind.status), kind.code or "ok"] += count
            if not kind.code:
                self._answers[*which, kind.quality, kind.source] += count
            if kind.in_time is not None:
                self._due[*which, "yes" if kind.in_time else "no"] += count
        self._clients.update(self._tally.clients)
        self._failed_s.update(self._tally.failed_s)
        for which, times in list(self._tally.times.items()):
            latency, slack, queue = self._by_version
            latency[which] = times.latency
            if sum(times.slack.counts):
                slack[which], queue[which] = times.slack, times.queue

    def collect(self) -> Iterator[Metric]:
        self._sort()
        yield from self._families.collect()
        for name, (text, read) in self.gauges.items():
            yield GaugeMetricFamily(f"timebound_{name}", text, value=read())
        for name, (text, read) in self.counts.items():
            yield CounterMetricFamily(f"timebound_{name}", text, value=read())
        yield from _of_workers(self._workers())
        yield self._steps.last()
        labels = (*_BY_VERSION, "backend", "engine")
        served = GaugeMetricFamily("timebound_model_info", "Models and versions that are served.", labels=labels)
        deadline = GaugeMetricFamily("timebound_model_deadline_seconds", "Models' own deadlines.", labels=_BY_VERSION)
        for info in self._models.values():
            served.add_metric((info.base, info.version, info.backend, info.engine), 1)
            deadline.add_metric((info.base, info.version), info.deadline_s)
        yield from (served, deadline)


def _of_workers(used: Mapping[str, tuple[float, float]]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("timebound_worker_memory_bytes", "Resident memory by worker.", labels=("worker",))
    cpu = CounterMetricFamily("timebound_worker_cpu_seconds", "Processor time by worker.", labels=("worker",))
    for worker, (held, took_s) in used.items():
        memory.add_metric((worker,), held)
        cpu.add_metric((worker,), took_s)
    yield from (memory, cpu)
