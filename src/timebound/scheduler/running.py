"""The batches that run, and how many slots were busy while they did."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from timebound.scheduler.served import Served
from timebound.scheduler.ticket import Batch, State, Ticket


class Running:
    """Starts and ends batches; what a stage took goes into its model's estimate."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._started = 0
        self._busy_seconds, self._busy_since = 0.0, 0.0  # integral of busy slots over time

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def runs(self, model: str) -> bool:
        return any(batch.model == model for batch in self)

    def residuals(self, now: float, without: Batch | None = None) -> list[float]:
        """Predicted seconds left of each running stage."""
        return [max(0.0, batch.stage_end - now) for batch in self._batches.values() if batch is not without]

    def start(
        self, served: Served, tickets: list[Ticket], reason: str, now: float, *, slots: int, margin_s: float
    ) -> Batch:
        """A batch of these tickets, which have left their queues, takes a slot."""
        self._count_busy(now)
        busy = len(self._batches) + 1
        size, tightest = 0.0, inf
        for ticket in tickets:
            ticket.state = State.RUNNING
            size = max(size, ticket.size)
            tightest = min(tightest, ticket.deadline)
        spec, estimate = served.spec, served.estimate
        crowd = slots if served.queued else busy
        times = [estimate.predict(len(tickets), size, member, crowd) for member in range(spec.members)]
        self._started += 1
        batch = Batch(
            self._started, spec.name, tickets, reason, size, now, sum(times), tightest - margin_s, busy,
            stage_started=now, stage_end=now + times[0], busy_mark=self._busy_seconds,
        )  # fmt: skip
        self._batches[batch.id] = batch
        return batch

    def next_stage(self, batch: Batch, now: float, predicted_s: float) -> None:
        """Its next member runs from now."""
        self._count_busy(now)
        batch.stage_started, batch.stage_end, batch.busy_mark = now, now + predicted_s, self._busy_seconds

    def close(self, batch: Batch, now: float) -> None:
        """It is over, and its slot free."""
        self._count_busy(now)
        batch.closed = True
        del self._batches[batch.id]
        for ticket in batch.tickets:
            ticket.state = State.OUT

    def learn(self, served: Served, batch: Batch, seconds: float, now: float, members: int) -> None:
        """The members from those done up to `members` took `seconds`: divided among them as they did before."""
        self._count_busy(now)
        elapsed = now - batch.stage_started
        busy = batch.busy
        if elapsed > 0:
            busy = max(1, round((self._busy_seconds - batch.busy_mark) / elapsed))
        served.last_learned = now
        served.slowest_s = max(now - batch.started, 0.99 * served.slowest_s)
        items = len(batch) if batch.inferred is None else batch.inferred
        if items == 0:
            return  # all were refused before the model saw them
        if batch.is_alone and batch.members_done == 0 and members == served.spec.members:
            return  # its members ran side by side; how long that takes says nothing about a busy server
        estimate, first = served.estimate, batch.members_done
        if members == first + 1:
            estimate.observe(items, batch.size, seconds, first, busy)
            return
        whole = estimate.scale(first, members)
        for member in range(first, members):
            part_s = seconds * estimate.scale(member, member + 1) / whole
            estimate.observe(items, batch.size, part_s, member, busy)

    def _count_busy(self, now: float) -> None:
        if now != self._busy_since:
            self._busy_seconds += len(self._batches) * max(0.0, now - self._busy_since)
            self._busy_since = now
