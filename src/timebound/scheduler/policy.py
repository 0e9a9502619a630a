"""Which requests run next, together: a function of the queues, the time and the estimates.

The policy in one paragraph. One queue per model, earliest deadline first. Whenever a slot is free and
anything waits, a batch starts: nothing is held back for company, so a lone request on an idle server waits
for nobody (work-conserving). The batch takes what is queued, up to a limit: the largest size whose predicted
time fits the first deadline in it, a quantum of a sixth of the model's deadline (so that a newcomer never
waits long behind a batch), twice the largest size ever run (so that the estimate is trusted only near what
it has seen), and the model's own maximum. Between models, the one whose first deadline leaves least slack goes.
"""

from __future__ import annotations

from collections.abc import Iterable

from timebound.errors import Refusal
from timebound.scheduler.estimate import Estimate
from timebound.scheduler.queue import Queue
from timebound.scheduler.ticket import Batch, ModelSpec, Ticket

_QUANTUM = 1 / 6
"""Share of a model's deadline that one batch may take."""


class Scheduler:
    """Holds the queues and decides. Never waits and never reads a clock: `now` is handed in."""

    def __init__(self, *, max_queue: int = 4096) -> None:
        self.max_queue = max_queue
        self._lanes: dict[str, _Lane] = {}
        self._next_batch = 0

    def add_model(self, spec: ModelSpec) -> None:
        """Know a model; an estimate that has already learned is kept."""
        known = self._lanes.get(spec.name)
        if known is None:
            self._lanes[spec.name] = _Lane(spec)
        else:
            known.spec = spec

    def queued(self) -> int:
        """How many tickets wait."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    def offer(self, ticket: Ticket, now: float) -> None:
        """Take a ticket into its queue, or raise `Refusal` at once."""
        lane = self._lanes[ticket.model]
        if len(lane.queue) >= self.max_queue:
            drain_s = lane.work_s()
            raise Refusal(
                f"{len(lane.queue)} requests are waiting already", code="queue_full", retry_after_s=max(drain_s, 0.001)
            )
        lane.queue.put(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """The ticket was answered or given up elsewhere; it will not be dispatched."""
        if not ticket.is_gone:
            ticket.is_gone = True
            if ticket.is_queued:
                self._lanes[ticket.model].queue.drop(ticket)

    def take(self, now: float) -> Batch | None:
        """A slot is free: the batch it should run now, or None if nothing waits."""
        waiting = [lane for lane in self._lanes.values() if lane.queue.head() is not None]
        if not waiting:
            return None
        lane = min(waiting, key=_Lane.latest_start)
        size, reason = lane.size_now(now)
        tickets = [ticket for ticket in _take(lane.queue, size) if ticket is not None]
        for ticket in tickets:
            ticket.dispatches += 1
        self._next_batch += 1
        return Batch(
            id=self._next_batch,
            model=lane.spec.name,
            tickets=tickets,
            reason=reason,
            predicted_s=lane.estimate.predict(len(tickets)),
            started=now,
        )

    def batch_done(self, batch: Batch, now: float) -> None:
        """Learn from a batch that came back."""
        self._lanes[batch.model].estimate.observe(len(batch.tickets), now - batch.started)

    def batch_lost(self, batch: Batch, now: float) -> list[Ticket]:
        """A worker died with this batch: first-time tickets queue again, the others are returned as lost."""
        lost = []
        for ticket in batch.tickets:
            if ticket.is_gone:
                continue
            if ticket.dispatches > 1:
                lost.append(ticket)
            else:
                self._lanes[ticket.model].queue.put(ticket)
        return lost


class _Lane:
    """One model's queue and estimate."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.queue = Queue()
        self.estimate = Estimate(spec.first_guess_s)

    def latest_start(self) -> float:
        head = self.queue.head()
        assert head is not None
        return head.deadline - self.estimate.predict(1)

    def work_s(self) -> float:
        """Seconds one slot needs for all that waits."""
        return self.estimate.predict(len(self.queue))

    def size_now(self, now: float) -> tuple[int, str]:
        head = self.queue.head()
        assert head is not None
        waiting = len(self.queue)
        limits = {
            "all_waiting": waiting,
            "model_limit": self.spec.max_batch,
            "beyond_seen": 2 * self.estimate.largest_seen,
        }
        reason = min(limits, key=lambda name: limits[name])
        size = limits[reason]
        slack = head.deadline - now
        quantum = self.spec.deadline_s * _QUANTUM
        while size > 1 and self.estimate.predict(size) > min(slack, quantum):
            size, reason = size - 1, "deadline" if slack < quantum else "quantum"
        return size, reason


def _take(queue: Queue, count: int) -> Iterable[Ticket | None]:
    return (queue.take() for _ in range(count))
