"""What a policy does where the batch that it would like best does not fit, or leaves room. Rarely entered."""

from __future__ import annotations

from math import inf
from typing import Protocol

from timebound.scheduler.queue import DeadlineQueue
from timebound.scheduler.served import LaneView
from timebound.scheduler.ticket import Ticket


class View(Protocol):
    """What these look at; the policy's view."""

    now: float
    start: float
    margin: float
    lanes: list[LaneView]
    residuals: list[float]

    @property
    def fits(self) -> bool: ...
    def allowed_s(self, deadline_s: float) -> float: ...
    def slack(self, ticket_deadline: float) -> float: ...
    def due(self, lane: LaneView, batch: int) -> float: ...
    def backlog_fits(
        self, level: int, mine_s: float = 0.0, skip: dict[int, int] | None = None, reserve_s: float = 0.0
    ) -> bool: ...


def largest_or_try(view: View, lane: LaneView, queue: DeadlineQueue, want: int, share: int) -> tuple[list[Ticket], str]:
    """The batch of the best rate; now and then a larger one, to learn whether it has become better."""
    larger = min(2 * want, len(lane.curve.seconds) - 1)
    if want < larger <= share and lane.estimate.wants_try(larger):
        larger = min(larger, lane.largest(view.slack(queue.by_deadline.first[0])))
        return queue.slice(0, larger), "try_larger" if larger > want else "best_rate"
    return queue.slice(0, want), "best_rate" if want >= lane.cap else "split"


def pass_over(view: View, lane: LaneView, queue: DeadlineQueue, want: int, rate: float) -> tuple[list[Ticket], str]:
    """In order of deadline, from the first that leaves time for a batch of this share of the rate."""
    while want:
        enough, least = rate * want / lane.seconds(want), want
        while rate < 1.0 and least > 1 and least - 1 >= enough * lane.seconds(least - 1):
            least -= 1
        first = queue.first_due_after(view.due(lane, least))
        left = len(queue) - first
        if left >= least:
            room = lane.largest(view.slack(queue.by_deadline.at(first)[0]))
            return queue.slice(first, max(least, min(want, room))), "early_drop" if first else "tight_deadline"
        want = min(want - 1, max(left, want // 2))
    return [], ""


def fill(view: View, lane: LaneView, tickets: list[Ticket], own: DeadlineQueue) -> None:
    """Spare room goes to lower ranks of the lane, then to shorter lanes where padding is cheaper than a later batch."""
    limit = min(lane.cap, lane.largest(view.slack(min(ticket.deadline for ticket in tickets))))
    due = view.due(lane, limit) if limit > len(tickets) else inf
    for queue in lane.lane.queues:
        room = limit - len(tickets)
        # Retries ride along only where they push no first attempt over its deadline.
        if room > 0 and queue is not own and (not queue.rank.is_retry or view.fits):
            tickets += queue.slice(queue.first_due_after(due), room)
    for other in view.lanes:
        if other.lane.model != lane.lane.model or other.lane.bucket >= lane.lane.bucket:
            continue
        for queue in other.firsts():
            room = limit - len(tickets)
            # Left alone, they go later with others of their length: as many again come meanwhile, and it may be as many
            # as came here. Against a batch of those only that wait now, a closed loop of texts was padded by a quarter.
            later = min(2 * max(len(queue), len(own)), other.cap)
            one_more = lane.seconds(len(tickets) + 1) - lane.seconds(len(tickets))
            if room > 0 and one_more <= other.seconds(later) / later:
                tickets += queue.slice(queue.first_due_after(due), room)


def long_shot(view: View) -> tuple[LaneView, Ticket] | None:
    """Nothing fits safely. Rather than idle, try the ticket with most time left if it may well make it.

    Or whatever the estimate says, if nobody else needs the slot or nothing was learned for a while: it may be wrong,
    and only running something corrects it.
    """
    best: tuple[LaneView, Ticket] | None = None
    best_latest = -inf
    for lane in view.lanes:
        for queue in lane.lane.queues:
            deadline, _, ticket = queue.by_deadline.at(queue.first_due_after(queue.by_deadline.last[0]))
            latest = deadline - view.margin - lane.seconds(1)
            # Not by `start`: that is an estimate as well, of what a device's batches need besides it.
            may_find_out = (
                lane.served.is_in_doubt(view.now) or not view.residuals
            ) and deadline - view.margin > view.now
            if (latest >= view.start or may_find_out) and latest > best_latest:
                best, best_latest = (lane, ticket), latest
    return best


def fits_with_reserve(view: View, reserve: float) -> bool:
    """Ensembles alone are behind as well when one member each just fits: that backlog would delay full answers."""
    for lane in view.lanes:  # asked for nearly every batch, and mostly over with the first
        if lane.estimate.members == 1:
            return True
    return view.backlog_fits(1, reserve_s=reserve * view.allowed_s(min(lane.deadline_s for lane in view.lanes)))
