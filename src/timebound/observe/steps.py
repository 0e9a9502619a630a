"""What batches took in each stage and on a device, when the last one ended, and what fixed sizes cost in padding."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from timebound.events import BatchFinished
from timebound.observe.families import MOST_HISTOGRAMS, Families
from timebound.observe.rings import Bounded

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RATIOS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)


class Steps:
    """Hears of batches that have ended."""

    def __init__(self, families: Families, wall: Callable[[], float]) -> None:
        rows = "Rows that were run: items, and what pads them where backends run some batch sizes only."
        self._rows = families.counter("batch_rows", rows, "model", "version", "kind")
        shapes = "Batches of shapes that no device had prepared."
        self._unprepared = families.counter("device_unprepared", shapes, "model", "version")
        took, told = "What batches took on a device.", "Real over predicted seconds of batches on a device."
        self._seconds = families.histogram("device_seconds", took, SECONDS, "model", "version")
        self._prediction = families.histogram("device_prediction_ratio", told, RATIOS, "model", "version")
        stages = "Seconds that batches took in each stage of their model."
        self._stages = families.counter("stage_seconds", stages, "model", "version", "stage")
        self._wall = wall
        self._last: Bounded[tuple[str, str], float] = Bounded(float, MOST_HISTOGRAMS)

    def finished(self, event: BatchFinished, which: tuple[str, str]) -> None:
        """Take a batch in; its prediction counts if it ran as many members as were decided before."""
        run, report = event.run, event.report
        self._last[which] = self._wall()
        if report is not None:
            timing = report.timing
            self._stages[*which, "prepare"] += timing.prepare_s
            self._stages[*which, "infer"] += timing.infer_s
            self._stages[*which, "finish"] += timing.finish_s
        if run is not None and run.step:
            self._rows[*which, "item"] += event.size
            self._rows[*which, "padding"] += run.step - event.size
        if event.device_s:
            self._seconds[which].add(event.device_s)
            if run is not None and event.members == run.sure and run.device_s:
                self._prediction[which].add(event.device_s / run.device_s)

    def last(self) -> Metric:
        """When each model's last batch ended."""
        labels = ("model", "version")
        told = GaugeMetricFamily("timebound_last_batch_timestamp_seconds", "When the last batch ended.", labels=labels)
        for which, at in list(self._last.items()):
            told.add_metric(which, at)
        return told

    def met_unprepared(self, which: tuple[str, str]) -> None:
        """A batch has a shape that its device had not prepared."""
        self._unprepared[which] += 1
