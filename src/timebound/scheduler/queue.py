"""Waiting tickets: by deadline for serving, by arrival for picking the newest; one lane per model and length."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import islice

from timebound.scheduler.ticket import State, Ticket

Entry = tuple[float, int, Ticket]

# Half an octave: padding wastes at most 30 % and 5 to 60 tokens make eight lanes.
LENGTHS_PER_OCTAVE = 2
RETRY_RANK = 1_000_000  # behind every priority class


def length_bucket(size: float) -> int:
    """The index of the lane for items of this size."""
    if size == 1.0:  # most models know no sizes
        return 0
    if size == 1.0:
        return 0
    return math.ceil(LENGTHS_PER_OCTAVE * math.log2(size) - 1e-9) if size > 0 else -64


def padded_size(bucket: int) -> float:
    """The largest size that a lane holds."""
    return float(2.0 ** (bucket / LENGTHS_PER_OCTAVE))


def rank_of(ticket: Ticket) -> int:
    """0 is the default; smaller is served first when not everything can be."""
    return RETRY_RANK - ticket.priority if ticket.attempt > 1 or ticket.abandoned else -ticket.priority


class DeadlineQueue:
    """Tickets of one rank. Every operation is O(log n) plus a memory move."""

    __slots__ = ("by_arrival", "by_deadline", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.by_deadline: list[Entry] = []
        self.by_arrival: list[Entry] = []

    def __len__(self) -> int:
        return len(self.by_deadline)

    def add(self, ticket: Ticket) -> None:
        _insert(self.by_deadline, (ticket.deadline, ticket.seq, ticket))
        _insert(self.by_arrival, (ticket.arrived, ticket.seq, ticket))

    def remove(self, ticket: Ticket) -> None:
        """The ticket must be here, with the deadline it came with."""
        _delete(self.by_deadline, (ticket.deadline, ticket.seq), ticket)
        _delete(self.by_arrival, (ticket.arrived, ticket.seq), ticket)

    def first_due_after(self, moment: float) -> int:
        """How many tickets have a deadline before `moment`."""
        return bisect_left(self.by_deadline, (moment,))

    def due_by(self, moment: float) -> int:
        """How many tickets have a deadline up to and including `moment`."""
        return bisect_right(self.by_deadline, (moment, math.inf))

    def slice(self, start: int, count: int) -> list[Ticket]:
        """`count` tickets in order of deadline, from position `start`."""
        return [entry[2] for entry in self.by_deadline[start : start + count]]

    def newest(self, count: int, due: float) -> list[Ticket]:
        """The `count` newest arrivals that are not due before `due`, in order of deadline.

        Among equal deadlines the earliest arrival wins, so that ties never overtake each other.
        """
        chosen: dict[float, int] = {}
        found = 0
        for entry in islice(reversed(self.by_arrival), 4 * count):
            deadline = entry[2].deadline
            if deadline >= due:
                chosen[deadline] = chosen.get(deadline, 0) + 1
                found += 1
                if found == count:
                    break
        tickets: list[Ticket] = []
        for deadline in sorted(chosen):
            tickets += self.slice(self.first_due_after(deadline), chosen[deadline])
        return tickets


def _insert(entries: list[Entry], entry: Entry) -> None:
    """At the end if it belongs there, as most do."""
    if not entries or entries[-1] < entry:
        entries.append(entry)
    else:
        insort(entries, entry)


def _delete(entries: list[Entry], key: tuple[float, int], ticket: Ticket) -> None:
    """The first is the most likely one."""
    if entries[0][2] is ticket:
        del entries[0]
    else:
        del entries[bisect_left(entries, key)]


class Lane:
    """Tickets of one model and one length, in a queue per rank."""

    __slots__ = ("bucket", "count", "fresh", "model", "queues", "size")

    def __init__(self, model: str, bucket: int) -> None:
        self.model = model
        self.bucket = bucket
        self.size = padded_size(bucket)
        self.queues: list[DeadlineQueue] = []  # best rank first; only non-empty ones
        self.count = 0
        self.fresh = 0  # arrivals not yet counted by `Served.count_arrivals`

    def __len__(self) -> int:
        return self.count

    def add(self, ticket: Ticket) -> None:
        place = self._queue(rank_of(ticket))
        place.add(ticket)
        ticket.place = place
        ticket.state = State.QUEUED
        self.count += 1

    def _queue(self, rank: int) -> DeadlineQueue:
        for queue in self.queues:
            if queue.rank == rank:
                return queue
        queue = DeadlineQueue(rank)
        insort(self.queues, queue, key=lambda queue: queue.rank)
        return queue

    def remove(self, ticket: Ticket) -> None:
        place: DeadlineQueue = ticket.place
        place.remove(ticket)
        ticket.place = None
        ticket.state = State.OUT
        self.count -= 1
        if not place:
            self.queues.remove(place)

    def remove_all(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self.remove(ticket)

    def expired(self, moment: float) -> list[Ticket]:
        """Remove and return the tickets due before `moment`."""
        gone: list[Ticket] = []
        for queue in self.queues:
            if queue.by_deadline[0][0] < moment:
                gone += queue.slice(0, queue.first_due_after(moment))
        if gone:
            self.remove_all(gone)
        return gone
