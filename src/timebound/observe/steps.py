"""What batches took on a device, and what fixed batch sizes cost in padding."""

from __future__ import annotations

from timebound.events import BatchFinished
from timebound.observe.families import Families

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RATIOS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)


class Steps:
    """Hears of batches that have ended."""

    def __init__(self, families: Families) -> None:
        rows = "Rows that were run: items, and what pads them where backends run some batch sizes only."
        self._rows = families.counter("batch_rows", rows, "model", "version", "kind")
        took, told = "What batches took on a device.", "Real over predicted seconds of batches on a device."
        self._seconds = families.histogram("device_seconds", took, SECONDS, "model", "version")
        self._prediction = families.histogram("device_prediction_ratio", told, RATIOS, "model", "version")

    def finished(self, event: BatchFinished, which: tuple[str, str]) -> None:
        """Take a batch in; its prediction counts if it ran as many members as were decided before."""
        run = event.run
        if run is not None and run.step:
            self._rows[*which, "item"] += event.size
            self._rows[*which, "padding"] += run.step - event.size
        if event.device_s:
            self._seconds[which].add(event.device_s)
            if run is not None and event.members == run.sure and run.device_s:
                self._prediction[which].add(event.device_s / run.device_s)
