"""Would everybody who waits be in time? Asked when a batch cannot take all of them."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Protocol

from timebound.scheduler.queue import DeadlineQueue
from timebound.scheduler.served import LaneView, Served

MUCH_TIME = 8.0  # times the model's deadline: who has more is in no hurry
CHECKPOINTS = 32  # deadlines looked at, over all lanes: the cost of a decision must not grow with the queue


class _Waiting(NamedTuple):
    """A queue from its `start`, with what its members cost relative to the first."""

    queue: DeadlineQueue
    start: int
    lane: LaneView
    factor: float


class Backlog:
    """All that waits, and the slots' work to come; `start` is now and the margin."""

    __slots__ = ("_lanes", "_residuals", "_slots", "_start")

    def __init__(self, lanes: list[LaneView], residuals: list[float], slots: int, start: float) -> None:
        self._lanes = lanes
        self._residuals = residuals
        self._slots = slots
        self._start = start

    def fits(self, level: int, mine_s: float, skip: dict[int, int] | None, reserve_s: float) -> bool:
        """Would every waiting first attempt be in time with `level` members each?

        `mine_s`: one more slot is busy for so long; `skip` maps a queue (by id) to how many of its first tickets run;
        `reserve_s`: everything must be done so long before its deadline.
        """
        waiting: list[_Waiting] = []
        total = 0.0
        for lane in self._lanes:
            factor = lane.level_factor(level)
            for queue in lane.firsts():
                start = skip.get(id(queue), 0) if skip else 0
                if len(queue) > start:
                    waiting.append(_Waiting(queue, start, lane, factor))
                    total += factor * lane.work(len(queue) - start)
        if not waiting:
            return True
        busy_s = sum(self._residuals) + mine_s
        running = len(self._residuals) + (mine_s > 0)
        free_in = 0.0 if running < self._slots else min([*self._residuals, mine_s or inf])
        earliest = min(queue.by_deadline.at(start)[0] for queue, start, _, _ in waiting)
        longest = max(lane.safe * factor * lane.seconds(min(lane.cap, len(q))) for q, _, lane, factor in waiting)
        if max(free_in, (busy_s + total) / self._slots) + longest <= earliest - self._start - reserve_s:
            return True
        busy_s, free_in = busy_s + reserve_s * self._slots, free_in + reserve_s
        return all(self._in_time(entry, waiting, busy_s, free_in) for entry in waiting)

    def _in_time(self, entry: _Waiting, waiting: list[_Waiting], busy_s: float, free_in: float) -> bool:
        """One queue, at the last ticket of each future batch (of some batches, if there are many)."""
        queue, start, lane, factor = entry
        count, cap = len(queue) - start, lane.cap
        stride = max(cap, count * len(waiting) // CHECKPOINTS)
        position = cap - 1
        while True:
            position = min(position, count - 1)
            deadline = queue.by_deadline.at(start + position)[0]
            work = max(0, position + 1 - cap) * factor * lane.per_item
            for other in waiting:
                if other.queue is not queue:
                    ahead = max(0, other.queue.due_by(deadline) - other.start)
                    work += other.factor * other.lane.work(ahead)
            own = lane.safe * factor * lane.seconds(min(position + 1, cap))
            if max(free_in, (busy_s + work) / self._slots) + own > deadline - self._start:
                return False
            if position == count - 1:
                return True
            position += stride


class Waiting(Protocol):
    """What a decision about bulk work looks at; the policy's view."""

    models: list[Served]
    lanes: list[LaneView]

    def slack(self, ticket_deadline: float) -> float: ...


def is_bulk(view: Waiting, lane: LaneView) -> bool:
    """Has everybody who waits far more time than their models' deadlines, and no model a shorter one than this?"""
    return all(served.spec.deadline_s >= lane.deadline_s for served in view.models) and all(
        view.slack(queue.by_deadline.first[0]) > MUCH_TIME * each.deadline_s
        for each in view.lanes
        for queue in each.lane.queues
        if queue
    )
