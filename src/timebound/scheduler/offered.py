"""How much work clients bring, and how much of it waits: for whoever decides how many machines there should be."""

from __future__ import annotations

from timebound.scheduler.policy import View
from timebound.scheduler.served import Served


class Offered:
    """Adds up the slot seconds of all first attempts that came, done or not: in the best batches, with every member."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._seen: dict[str, float] = {}

    def count(self, view: View) -> float:
        """Take in what came since the last look; all that ever came."""
        for served in view.models:
            name, came_s = served.spec.name, served.arrived_s
            seen_s = self._seen.get(name, 0.0)
            self._seen[name] = came_s
            # A model that was taken away and came again counts from zero.
            self.seconds += (came_s - seen_s if came_s >= seen_s else came_s) * _whole(served, view.slots)
        return self.seconds


def waiting_s(view: View) -> float:
    """Seconds until all that waits and runs now would be done, with every member."""
    work_s = sum(served.backlog_s() * _whole(served, view.slots) for served in view.models if served.queued)
    return (sum(view.residuals) + work_s) / view.slots


def _whole(served: Served, slots: int) -> float:
    """What all members take, on a busy machine, against the first one alone."""
    estimate = served.estimate
    return estimate.scale(0, estimate.members) / estimate.first * estimate.crowd(slots)
