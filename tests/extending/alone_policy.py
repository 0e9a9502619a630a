"""A policy: whoever comes first, one at a time, and never more than one member."""

from __future__ import annotations

from timebound.scheduler import Plan, View


class Alone:
    """No batches at all."""

    admits_all = True

    def choose(self, view: View) -> Plan | None:
        queues = [(lane, queue) for lane in view.lanes for queue in lane.lane.queues if queue]
        if not queues:
            return None
        lane, queue = min(queues, key=lambda found: found[1].oldest.arrived)
        return Plan(lane, [queue.oldest], "alone")

    def goes_on(self, view: View, level: int, seconds: float, deadline_s: float) -> bool:
        return False
