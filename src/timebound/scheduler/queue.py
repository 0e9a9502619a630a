"""Waiting tickets: by deadline for serving, by arrival for picking the newest; one lane per model and length.

They stand in short chunks, so that adding and removing one costs the same among 100 as among 30,000.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from timebound.scheduler.ticket import Phase, Ticket

LENGTHS_PER_OCTAVE = 4  # as finely as lengths are told apart: padding costs 19 % at most
NEWEST_FROM = 4  # times a batch: so many of the newest are looked at to fill it; the others have too short deadlines


def length_bucket(size: float) -> int:
    """Items of one bucket are padded by 19 % at most; a lane has one bucket or some that follow each other."""
    if size == 1.0:  # most models know no sizes
        return 0
    return math.ceil(LENGTHS_PER_OCTAVE * math.log2(size) - 1e-9) if size > 0 else -64


def padded_size(bucket: int) -> float:
    """The largest size of a bucket."""
    return float(2.0 ** (bucket / LENGTHS_PER_OCTAVE))


class Rank(NamedTuple):
    """Who goes first when not everybody can be served: the smaller one."""

    is_retry: bool
    below: int  # the priority, turned round


FIRST, LAST = Rank(False, 0), Rank(True, 10**6)


def rank_of(ticket: Ticket) -> Rank:
    return Rank(ticket.is_retry, -ticket.priority) if ticket.is_awaited else LAST


Entry = tuple[float, int, Ticket]  # (when, sequence number, ticket); no two are equal in the first two

# A chunk is split when it is twice as long. Moving 256 pointers takes less time than finding the chunk.
CHUNK = 256


class Ordered:
    """Entries by their time, then by their number. Positions count from the smallest."""

    __slots__ = ("_chunks", "_lasts", "count")

    def __init__(self) -> None:
        self._chunks: list[list[Entry]] = []  # none is empty
        self._lasts: list[Entry] = []  # the last entry of each chunk
        self.count = 0  # asked for so often that a method would cost

    def __iter__(self) -> Iterator[Entry]:
        for chunk in self._chunks:
            yield from chunk

    @property
    def first(self) -> Entry:
        return self._chunks[0][0]

    @property
    def last(self) -> Entry:
        return self._lasts[-1]

    def add(self, entry: Entry) -> None:
        self.count += 1
        lasts = self._lasts
        if not lasts:
            self._chunks.append([entry])
            lasts.append(entry)
            return
        if lasts[-1] < entry:  # most belong at the end
            place = -1
            chunk = self._chunks[-1]
            chunk.append(entry)
            lasts[-1] = entry
        else:
            place = bisect_left(lasts, entry)
            chunk = self._chunks[place]
            insort(chunk, entry)
        if len(chunk) >= 2 * CHUNK:
            self._chunks.insert(place, chunk[:CHUNK])
            lasts.insert(place, chunk[CHUNK - 1])
            del chunk[:CHUNK]

    def remove(self, when: float, ticket: Ticket) -> None:
        """The ticket must be here, with this time."""
        self.count -= 1
        place, chunk = 0, self._chunks[0]
        if chunk[0][2] is ticket:  # the most likely one
            del chunk[0]
        else:
            key = (when, ticket.seq)
            place = bisect_left(self._lasts, key)
            chunk = self._chunks[place]
            del chunk[bisect_left(chunk, key)]
        if not chunk:
            del self._chunks[place], self._lasts[place]
        elif self._lasts[place][2] is ticket:
            self._lasts[place] = chunk[-1]

    def before(self, key: tuple[float] | tuple[float, float]) -> int:
        """How many entries are smaller than `key`."""
        place = bisect_left(self._lasts, key)
        if place == len(self._lasts):
            return self.count
        return sum(map(len, self._chunks[:place])) + bisect_left(self._chunks[place], key)

    def at(self, position: int) -> Entry:
        for chunk in self._chunks:
            if position < len(chunk):
                return chunk[position]
            position -= len(chunk)
        raise IndexError("no entry has this position")

    def slice(self, start: int, count: int) -> list[Ticket]:
        """Up to `count` tickets from position `start`."""
        found: list[Ticket] = []
        for chunk in self._chunks:
            if start < len(chunk):
                found += [entry[2] for entry in chunk[start : start + count - len(found)]]
                if len(found) >= count:
                    break
                start = 0
            else:
                start -= len(chunk)
        return found


class DeadlineQueue:
    """Tickets of one rank."""

    __slots__ = ("by_arrival", "by_deadline", "rank")

    def __init__(self, rank: Rank) -> None:
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
        for ticket in islice(reversed(self.by_arrival.values()), NEWEST_FROM * count):
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

    __slots__ = ("bucket", "count", "model", "offered", "queues", "size", "taken")

    def __init__(self, model: str, bucket: int) -> None:
        self.model = model
        self.bucket = bucket
        self.size = padded_size(bucket)
        self.queues: list[DeadlineQueue] = []  # best rank first; only non-empty ones
        self.count = 0
        self.offered = self.taken = 0  # first attempts that ever came, and tickets that ever ran

    def __len__(self) -> int:
        return self.count

    def add(self, ticket: Ticket) -> None:
        is_usual = ticket.is_awaited and not (ticket.is_retry or ticket.priority)
        rank, queues = FIRST if is_usual else rank_of(ticket), self.queues
        place = queues[0] if queues and queues[0].rank is rank else self._queue(rank)
        place.add(ticket)
        ticket.lane, ticket.place = self, place
        ticket.phase = Phase.QUEUED
        self.count += 1

    def _queue(self, rank: Rank) -> DeadlineQueue:
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
        ticket.phase = Phase.ACCEPTED
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
