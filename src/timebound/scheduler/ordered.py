"""Waiting tickets in an order, in short chunks: adding and removing one costs the same among 100 as among 30,000."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from timebound.scheduler.ticket import Ticket

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

    def __reversed__(self) -> Iterator[Entry]:
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)

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
