"""What a worker measured before its first batch: the seconds of each batch size that its backend runs.

With it the estimate knows the whole staircase from the first request on. A plain request on a CPU enters nothing of
this.
"""

from __future__ import annotations

import math
from math import inf
from statistics import mean

from timebound.scheduler.estimate import ENOUGH_TRIES, Estimate
from timebound.scheduler.queue import length_bucket
from timebound.scheduler.shape import CELL_RATE
from timebound.scheduler.ticket import ModelSpec


def seed(estimate: Estimate, spec: ModelSpec) -> None:
    """Begin with what was measured, whatever was known of another day."""
    sizes = spec.batch_sizes
    first = spec.step_s[0]
    if len(spec.step_s) != spec.members or any(len(steps) != len(sizes) for steps in spec.step_s):
        return  # it does not say what each member takes at each step
    _begin(estimate, {(size, 1.0): seconds for size, seconds in zip(sizes, first, strict=True)})
    for member, steps in enumerate(spec.step_s):
        ratios = [math.log(max(own, 1e-6) / max(seconds, 1e-6)) for own, seconds in zip(steps, first, strict=True)]
        estimate.member[member] = level = mean(ratios)
        for size, ratio in zip(sizes, ratios, strict=True):
            if abs(ratio - level) > 1e-9:
                estimate.uneven[member, size] = math.exp(ratio - level)
        estimate.known_members.add(member)
    estimate.at_once = dict(zip(sizes, spec.together_s, strict=False))
    _settle(estimate, sizes)


def seed_grid(estimate: Estimate, spec: ModelSpec) -> None:
    """The same where seconds were measured for some sizes of requests."""
    if any(len(steps) != spec.members for _, steps in spec.grid_s):
        return
    rows = [(size, steps) for size, steps in spec.grid_s if steps[0]]
    _begin(estimate, {(batch, size): s for size, steps in rows for batch, s in zip(spec.batch_sizes, steps[0])})  # noqa: B905
    for member in range(spec.members):
        pairs = [pair for _, steps in rows for pair in zip(steps[member], steps[0], strict=True)]
        estimate.member[member] = mean([math.log(max(own, 1e-6) / max(first, 1e-6)) for own, first in pairs])
        estimate.known_members.add(member)
    _settle(estimate, spec.batch_sizes)


def _begin(estimate: Estimate, seconds: dict[tuple[int, float], float]) -> None:
    """Have these, by batch and size, instead of what was known."""
    estimate.shape.cells = {
        (batch, length_bucket(size)): [float(ENOUGH_TRIES), float(batch), size, max(took, 1e-6)]
        for (batch, size), took in seconds.items()
    }
    estimate.crowds.clear()
    estimate.drift = estimate.usual_drift = 0.0
    estimate.largest_batch = max(batch for batch, _ in seconds)
    estimate.largest_work = max(batch * size for batch, size in seconds)


def _settle(estimate: Estimate, sizes: tuple[int, ...]) -> None:
    estimate.known_from_start(sizes)
    estimate.shape.fit(lambda bucket: False)
    estimate.rescale()
    estimate.forget_shape()


def at_once_s(estimate: Estimate, batch: int) -> float:
    """Seconds of all members at once; infinite if batches of that size are not run so."""
    return estimate.at_once.get(estimate.shape.padded(batch), inf)


def heard_at_once(estimate: Estimate, batch: int, seconds: float) -> None:
    """All members took so long, at once."""
    step = estimate.shape.padded(batch)
    known_s = estimate.at_once.get(step, seconds)
    estimate.at_once[step] = known_s + CELL_RATE * (seconds - known_s)
