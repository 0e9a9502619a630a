"""What is kept of a model across restarts and reloads, and told to those who plan with it."""

from __future__ import annotations

import itertools
import math
from typing import Any

from timebound.scheduler.estimate import ENOUGH_TRIES, LONG_WINDOW, STRAGGLER, WINDOW, Estimate
from timebound.scheduler.queue import length_bucket
from timebound.scheduler.served import Served
from timebound.scheduler.shape import CELL_RATE, UNKNOWN_S
from timebound.scheduler.ticket import ModelSpec


def save(estimate: Estimate) -> dict[str, Any]:
    """A small JSON-able profile; `restore` takes it back."""
    return {
        "cells": [[round(value, 7) for value in cell] for cell in estimate.shape.cells.values()],
        "scale": [round(estimate.drift + part, 5) for part in estimate.member],
        "crowd": {str(level): round(value, 5) for level, value in estimate.crowds.items()},
        "largest": [estimate.largest_batch, estimate.largest_work],
        "quantiles": [round(estimate.fast, 4), round(estimate.safe, 4)],
        # For plans made from the profile; `restore` goes on from the last moment and needs none of these.
        "usual_drift": round(estimate.usual_drift, 5),
        "max_batch": estimate.max_batch,
        "sizes": list(estimate.shape.sizes),
        "scatter": _scatter(estimate),
    }


def _scatter(estimate: Estimate) -> list[list[float]]:
    """What was heard over what this profile predicts, from the quickest to the slowest, and seconds beyond.

    Stragglers count as STRAGGLER times the prediction, and the rest is in seconds: what delays them comes from
    outside and is as long for a short batch as for a long one. The means are those of all that was kept.
    """
    usual = math.exp(estimate.usual_drift - estimate.drift)
    heard = []
    for batch, size, member, busy, seconds in estimate.recent:
        predicted = usual * estimate.predict(batch, size, member, busy)
        heard.append((min(seconds / predicted, STRAGGLER), max(0.0, seconds - STRAGGLER * predicted)))
    heard.sort()
    parts = min(WINDOW, len(heard))  # of equal count; their means are saved
    edges = [len(heard) * part // parts for part in range(parts + 1)] if parts else []
    return [
        [round(sum(column) / (end - start), 5) for column in zip(*heard[start:end], strict=True)]
        for start, end in itertools.pairwise(edges)
    ]


def restore(estimate: Estimate, profile: dict[str, Any], most_count: float = ENOUGH_TRIES) -> None:
    """Continue from a saved profile. Old counts weigh little, so that a changed machine is learned quickly."""
    cells = profile.get("cells", [])
    if not cells:
        return
    shape = estimate.shape
    for count, batch, size, seconds in cells:
        key = (shape.bucket(max(1, round(batch))), length_bucket(size))
        shape.cells[key] = [min(count, most_count), batch, size, seconds]
    drift, *_ = scale = [*profile["scale"], *[0.0] * estimate.members][: estimate.members]
    estimate.drift, estimate.member = drift, [value - drift for value in scale]
    estimate.known_members = {member for member, value in enumerate(scale) if member == 0 or value}
    estimate.rescale()
    estimate.crowds = {int(level): value for level, value in profile["crowd"].items()}
    estimate.largest_batch, estimate.largest_work = profile["largest"]
    estimate.fast, estimate.safe = profile["quantiles"]
    estimate.observations = ENOUGH_TRIES
    shape.overhead = shape.per_item = UNKNOWN_S
    shape.fit(estimate.is_long_ago)
    estimate.forget_shape()


def save_model(served: Served) -> dict[str, Any]:
    """The estimate, and how many requests came of each length."""
    return {**save(served.estimate), "lengths": {str(bucket): count for bucket, count in served.lengths.items()}}


def restore_model(served: Served, profile: dict[str, Any]) -> None:
    """Continue from a saved profile. Requests of earlier days count as the latest observations do, and no more."""
    restore(served.estimate, profile)
    known = profile.get("lengths", {})
    weight = min(1.0, LONG_WINDOW / max(1.0, sum(known.values())))
    served.lengths = {int(bucket): count * weight for bucket, count in known.items()}


def renew_model(served: Served, spec: ModelSpec) -> None:
    """New code was loaded: how fast the old was is a guess. Nobody is refused for it; one measurement overrules it."""
    old, new = served.estimate, Estimate(spec.members, spec.max_batch, spec.batch_sizes)
    for key, cell in old.shape.cells.items():
        new.shape.cells[key] = [CELL_RATE, *cell[1:]]
    new.shape.overhead, new.shape.per_item, new.shape.is_guessed = old.shape.overhead, old.shape.per_item, True
    new.largest_batch, new.largest_work = old.largest_batch, old.largest_work
    new.drift, new.usual_drift, new.crowds = old.drift, old.usual_drift, old.crowds
    new.member = [*old.member, *new.member][: spec.members]
    new.rescale()
    served.spec, served.estimate = spec, new
    served.ran, served.is_slow_at_first = set(), False
    served.first_times.clear()
