"""Would everybody who waits be in time? Asked when a batch cannot take all of them; and who gives way if not."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol

from timebound.scheduler.queue import DeadlineQueue
from timebound.scheduler.served import LaneView, Served
from timebound.scheduler.ticket import Ticket

# Seconds of waiting work per slot, as a multiple of the deadline: more cannot be served. Worth nothing in answers (0.3
# points at most); it bounds what a decision costs, and those who give way are told early.
BACKLOG_DEADLINES = 1.25
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


def displace(served: Served, slots: int, now: float, give_up: Callable[[Ticket, str], None]) -> None:
    """If more waits than can be done before the last deadline, the oldest of the lowest rank give way."""
    lanes = [lane for lane in served.lanes.values() if lane.count]
    last = max(queue.by_deadline.last[0] for lane in lanes for queue in lane.queues if queue)
    limit = BACKLOG_DEADLINES * max(served.spec.deadline_s, last - now) * slots
    while served.queued > 1 and (backlog_s := served.backlog_s()) > limit:
        queues = [lane.queues[-1] for lane in lanes if lane.count]
        give_up(max(queues, key=lambda queue: (queue.rank, -queue.oldest.arrived)).oldest, "overloaded")
    # Looked at again when half of the room that is left has been used, not at every arrival.
    room = served.queued * (limit / backlog_s - 1.0) if backlog_s else 0.0
    served.roomy = served.queued + int(room / 2)
