"""What who asks now would get: how long an answer would take with one member of an ensemble, with two, with all."""

from __future__ import annotations

from timebound.scheduler.policy import View
from timebound.scheduler.queue import Lane, length_bucket
from timebound.scheduler.served import Served


def outlook(view: View, served: Served) -> list[float]:
    """Safe seconds until the answer to an item of the length that comes most, by the number of members."""
    estimate = served.estimate
    usual = Lane(served.spec.name, length_bucket(1.0))
    lane = max(served.lanes.values(), key=lambda one: one.offered, default=usual)
    own_s = served.alone_s(lane) * estimate.crowd(max(1, view.slots)) * estimate.safe
    return [_wait_s(view, level) + own_s * _factor(served, level) for level in range(1, estimate.members + 1)]


def _wait_s(view: View, level: int) -> float:
    """Until a slot is free for it, if everybody who waits gets so many members."""
    if not view.waiting:
        return 0.0 if len(view.residuals) < view.slots else min(view.residuals, default=0.0)
    work_s = sum(served.backlog_s() * _factor(served, level) for served in view.models if served.queued)
    return (sum(view.residuals) + work_s) / max(1, view.slots)


def _factor(served: Served, level: int) -> float:
    """What so many members take, against the first one alone."""
    estimate = served.estimate
    return estimate.scale(0, min(level, estimate.members)) / estimate.first
