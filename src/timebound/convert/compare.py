"""What went in beside what came out: size, speed, agreement and accuracy on the same samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from timebound.clock import Clock, MonotonicClock
from timebound.convert.samples import Samples, whole_labels

_BATCH = 8
_RUNS = 9
# Two scores this close are a tie, which rounding decides: a share of the item's spread, and of its best score.
_TIE, _ROUNDING = 1e-3, 1e-5

Net = Callable[[Any], Any]


class Measure(msgspec.Struct, frozen=True):
    """One network on the samples: milliseconds per item at batches of 1 and 8, and its outputs."""

    size_bytes: int
    single_ms: float
    batch_ms: float
    outputs: list[Any]
    accuracy: float | None


class Agreement(msgspec.Struct, frozen=True):
    """How alike two networks answer, or one output of theirs."""

    difference: float
    """The largest; infinite where shapes differ, or where only one gives a number."""
    scale: float
    """The largest number of the first network."""
    same: float | None
    """Share of equal answers; None if nothing is chosen."""
    near: float | None = None
    """The same, but a tie of the first network counts as equal whichever way it goes."""

    @property
    def relative(self) -> float:
        """The largest difference, in units of the largest output."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.scale if self.scale else float("inf")


def measure(net: Net, size_bytes: int, samples: Samples, clock: Clock | None = None) -> Measure:
    """Run a network over all samples, and time it."""
    clock = clock or MonotonicClock()
    parts = [_columns(net(_given(batch))) for batch in samples.batches(_BATCH)]
    outputs = [np.concatenate(column) for column in zip(*parts, strict=True)]
    accuracy = None
    if samples.labels is not None and _chooses(outputs[0]):
        labels = whole_labels(samples.labels, outputs[0].shape[1])
        accuracy = float((outputs[0].argmax(axis=-1) == labels).mean())
    single, batch = (_ms_per_item(net, _given(_filled(samples, size)), size, clock) for size in (1, _BATCH))
    return Measure(size_bytes, single, batch, outputs, accuracy)


def agreement(before: Measure, after: Measure) -> list[Agreement]:
    """Compare two networks on the same samples, output by output: a large one must not hide a small one."""
    return [_alike(old, new) for old, new in zip(before.outputs, after.outputs, strict=True)]


def largest(alike: list[Agreement]) -> Agreement:
    """The output that strays furthest."""
    return max(alike, key=lambda each: each.relative)


def table(before: Measure, after: Measure, count: int) -> str:
    """The comparison in columns."""
    alike = agreement(before, after)
    same = alike[0].same
    rows = [
        ("", "before", "after"),
        ("size", *(f"{each.size_bytes / 1e6:.3g} MB" for each in (before, after))),
        ("ms per item, batch 1", f"{before.single_ms:.3g}", f"{after.single_ms:.3g}"),
        (f"ms per item, batch {_BATCH}", f"{before.batch_ms:.3g}", f"{after.batch_ms:.3g}"),
        ("largest difference", "", f"{max(each.difference for each in alike):.2g}"),
    ]
    if same is not None:
        rows.append((f"same answer on {count} samples", "", f"{same:.1%}"))
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


def _alike(old: Any, new: Any) -> Agreement:
    if old.shape != new.shape:
        return Agreement(float("inf"), 0.0, 0.0, 0.0)
    if old.dtype.kind in "OUS":  # names of classes
        same = float((old == new).mean())
        return Agreement(0.0, 0.0, same, same)
    wide, other = old.astype(np.float64), new.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite on both sides is no difference, and has no number
        gap = np.where(wide == other, 0.0, np.abs(wide - other))
    difference = float("inf") if np.isnan(gap).any() else float(gap.max(initial=0))
    scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0))
    if _chooses(old):
        return Agreement(difference, scale, *_shares(wide, other))
    # One whole number per item: a class that the network chose itself.
    is_choice = old.dtype.kind in "iub" and old.size == len(old)
    equal = float((old == new).mean()) if is_choice else None
    return Agreement(difference, scale, equal, equal)


def _shares(old: Any, new: Any) -> tuple[float, float]:
    """Of equal answers, without ties and with them."""
    first, second = old.argmax(axis=-1), new.argmax(axis=-1)
    best = old.max(axis=-1)
    chosen = np.take_along_axis(old, second[:, None], axis=-1)[:, 0]
    with np.errstate(invalid="ignore"):
        margin = np.maximum(_TIE * (best - old.min(axis=-1)), _ROUNDING * np.abs(best))
        near = (first == second) | (best - chosen <= np.where(np.isfinite(margin), margin, 0.0))
    return float((first == second).mean()), float(near.mean())


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
