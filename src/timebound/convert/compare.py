"""What went in beside what came out: size, speed, agreement and accuracy on the same samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from timebound.clock import Clock, MonotonicClock
from timebound.convert.samples import Samples

_BATCH = 8
_RUNS = 9

Net = Callable[[Any], Any]


class Measure(msgspec.Struct, frozen=True):
    """One network on the samples: milliseconds per item at batches of 1 and 8, and its outputs."""

    size_bytes: int
    single_ms: float
    batch_ms: float
    outputs: list[Any]
    accuracy: float | None


class Agreement(msgspec.Struct, frozen=True):
    """How alike two networks answer: `same` is the share of equal answers, None if they choose nothing."""

    difference: float
    scale: float
    same: float | None

    @property
    def relative(self) -> float:
        """The largest difference, in units of the largest output (or 1 if that is smaller)."""
        return self.difference / max(1.0, self.scale)


def measure(net: Net, size_bytes: int, samples: Samples, clock: Clock | None = None) -> Measure:
    """Run a network over all samples, and time it."""
    clock = clock or MonotonicClock()
    parts = [_columns(net(_given(batch))) for batch in samples.batches(_BATCH)]
    outputs = [np.concatenate(column) for column in zip(*parts, strict=True)]
    accuracy = None
    if samples.labels is not None and _chooses(outputs[0]):
        accuracy = float((outputs[0].argmax(axis=-1) == samples.labels).mean())
    single, batch = (_ms_per_item(net, _given(_filled(samples, size)), size, clock) for size in (1, _BATCH))
    return Measure(size_bytes, single, batch, outputs, accuracy)


def agreement(before: Measure, after: Measure) -> Agreement:
    """Compare the outputs of two networks on the same samples."""
    differences, scale = [0.0], [0.0]
    for old, new in zip(before.outputs, after.outputs, strict=True):
        if old.shape != new.shape:
            return Agreement(float("inf"), 0.0, 0.0)
        gap = np.abs(old.astype(np.float64) - new.astype(np.float64))
        differences.append(float("inf") if np.isnan(gap).any() else float(gap.max(initial=0)))
        scale.append(float(np.abs(old).max(initial=0)))
    same = None
    if _chooses(before.outputs[0]):
        same = float((before.outputs[0].argmax(axis=-1) == after.outputs[0].argmax(axis=-1)).mean())
    return Agreement(max(differences), max(scale), same)


def table(before: Measure, after: Measure, count: int) -> str:
    """The comparison in columns."""
    alike = agreement(before, after)
    rows = [
        ("", "before", "after"),
        ("size", *(f"{each.size_bytes / 1e6:.3g} MB" for each in (before, after))),
        ("ms per item, batch 1", f"{before.single_ms:.3g}", f"{after.single_ms:.3g}"),
        (f"ms per item, batch {_BATCH}", f"{before.batch_ms:.3g}", f"{after.batch_ms:.3g}"),
        ("largest difference", "", f"{alike.difference:.2g}"),
    ]
    if alike.same is not None:
        rows.append((f"same answer on {count} samples", "", f"{alike.same:.1%}"))
    if before.accuracy is not None and after.accuracy is not None:
        rows.append(("accuracy", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


def _given(batch: dict[str, Any]) -> Any:
    return batch if len(batch) > 1 else next(iter(batch.values()))


def _filled(samples: Samples, size: int) -> dict[str, Any]:
    """A batch of exactly `size`, with samples repeated if there are fewer."""
    return {name: np.resize(array[:size], (size, *array.shape[1:])) for name, array in samples.arrays.items()}


def _columns(output: Any) -> list[Any]:
    if isinstance(output, dict):
        return list(output.values())
    return list(output) if isinstance(output, tuple) else [output]


def _chooses(output: Any) -> bool:
    """Whether an output is one row of scores per item, of which the largest is the answer."""
    return bool(output.ndim == 2 and output.shape[1] > 1 and output.dtype.kind == "f")


def _ms_per_item(net: Net, batch: Any, size: int, clock: Clock) -> float:
    took = []
    for _ in range(_RUNS + 2):
        start = clock.now()
        net(batch)
        took.append((clock.now() - start) * 1000 / size)
    return statistics.median(took[2:])  # the first two pay for lazy set-up
