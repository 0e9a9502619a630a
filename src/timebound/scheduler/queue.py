"""Waiting tickets, earliest deadline first, equal deadlines in order of arrival."""

from __future__ import annotations

from heapq import heappop, heappush

from timebound.scheduler.ticket import Ticket


class Queue:
    """A heap that skips tickets that were dropped; every operation costs O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def put(self, ticket: Ticket) -> None:
        """Add a ticket."""
        heappush(self._heap, (ticket.deadline, ticket.seq, ticket))
        ticket.is_queued = True
        self._waiting += 1

    def drop(self, ticket: Ticket) -> None:
        """Count a waiting ticket out; its place in the heap is skipped when it comes up."""
        ticket.is_queued = False
        self._waiting -= 1

    def head(self) -> Ticket | None:
        """The next ticket, still in the queue."""
        while self._heap:
            ticket = self._heap[0][2]
            if ticket.is_queued:
                return ticket
            heappop(self._heap)
        return None

    def take(self) -> Ticket | None:
        """The next ticket, removed."""
        ticket = self.head()
        if ticket is not None:
            heappop(self._heap)
            self.drop(ticket)
        return ticket
