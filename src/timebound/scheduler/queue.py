"""Waiting tickets: by deadline for serving, by arrival for picking the newest; one lane per model and length."""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from timebound.scheduler.ordered import Ordered
from timebound.scheduler.ticket import State, Ticket

LENGTHS_PER_OCTAVE = 4  # as finely as lengths are told apart
RETRY_RANK = 1_000_000  # behind every priority class


def length_bucket(size: float) -> int:
    """Items of one bucket are padded by 19 % at most; a lane has one bucket or some that follow each other."""
    if size == 1.0:  # most models know no sizes
        return 0
    return math.ceil(LENGTHS_PER_OCTAVE * math.log2(size) - 1e-9) if size > 0 else -64


def padded_size(bucket: int) -> float:
    """The largest size of a bucket."""
    return float(2.0 ** (bucket / LENGTHS_PER_OCTAVE))


def rank_of(ticket: Ticket) -> int:
    """0 is the default; smaller is served first when not everything can be."""
    return RETRY_RANK - ticket.priority if ticket.attempt > 1 or ticket.abandoned else -ticket.priority


class DeadlineQueue:
    """Tickets of one rank."""

    __slots__ = ("by_arrival", "by_deadline", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.by_deadline = Ordered()
        self.by_arrival: OrderedDict[int, Ticket] = OrderedDict()  # by number, in the order in which they came

    def __len__(self) -> int:
        return self.by_deadline.count

    def add(self, ticket: Ticket) -> None:
        self.by_deadline.add((ticket.deadline, ticket.seq, ticket))
        self.by_arrival[ticket.seq] = ticket

    def remove(self, ticket: Ticket) -> None:
        """The ticket must be here, with the deadline it came with."""
        self.by_deadline.remove(ticket.deadline, ticket)
        del self.by_arrival[ticket.seq]

    @property
    def oldest(self) -> Ticket:
        return next(iter(self.by_arrival.values()))

    def first_due_after(self, moment: float) -> int:
        """How many tickets have a deadline before `moment`."""
        return self.by_deadline.before((moment,))

    def due_by(self, moment: float) -> int:
        """How many tickets have a deadline up to and including `moment`."""
        return self.by_deadline.before((moment, math.inf))

    def slice(self, start: int, count: int) -> list[Ticket]:
        """`count` tickets in order of deadline, from position `start`."""
        return self.by_deadline.slice(start, count)

    def newest(self, count: int, due: float) -> list[Ticket]:
        """The `count` newest arrivals that are not due before `due`, in order of deadline.

        Among equal deadlines the earliest arrival wins, so that ties never overtake each other.
        """
        chosen: dict[float, int] = {}
        found = 0
        for ticket in islice(reversed(self.by_arrival.values()), 4 * count):
            deadline = ticket.deadline
            if deadline >= due:
                chosen[deadline] = chosen.get(deadline, 0) + 1
                found += 1
                if found == count:
                    break
        tickets: list[Ticket] = []
        for deadline in sorted(chosen):
            tickets += self.slice(self.first_due_after(deadline), chosen[deadline])
        return tickets


class Lane:
    """Tickets of one model and about one length, in a queue per rank; `bucket` is that of the longest."""

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
        ticket.lane, ticket.place = self, place
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
        ticket.lane = ticket.place = None
        ticket.state = State.OUT
        self.count -= 1
        if not place.by_deadline.count:
            self.queues.remove(place)

    def remove_all(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self.remove(ticket)

    def expired(self, moment: float) -> list[Ticket]:
        """Remove and return the tickets due before `moment`."""
        gone: list[Ticket] = []
        for queue in self.queues:
            if queue.by_deadline.first[0] < moment:
                gone += queue.slice(0, queue.first_due_after(moment))
        if gone:
            self.remove_all(gone)
        return gone
