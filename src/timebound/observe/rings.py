"""The recent past in fixed memory: rows of numbers, the last things of a kind, and a bounded number of kinds."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import nan
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Ring:
    """The last `length` rows, one column of numbers for each name."""

    def __init__(self, names: Sequence[str], length: int) -> None:
        self.names = tuple(names)
        self.length = length
        self._columns = [array("d", [nan]) * length for _ in self.names]
        self._count = 0

    def put(self, row: Sequence[float]) -> None:
        """Add a row; the oldest one makes place for it."""
        place = self._count % self.length
        for column, value in zip(self._columns, row, strict=True):
            column[place] = value
        self._count += 1

    def columns(self) -> dict[str, list[float]]:
        """Every column, its oldest value first."""
        kept, place = min(self._count, self.length), self._count % self.length
        if kept < self.length:
            return {name: list(column[:kept]) for name, column in zip(self.names, self._columns, strict=True)}
        each = zip(self.names, self._columns, strict=True)
        return {name: list(column[place:]) + list(column[:place]) for name, column in each}


class Recent(Generic[T]):
    """The last `length` things; each has a number, the first 0."""

    def __init__(self, length: int) -> None:
        self._things: deque[T] = deque(maxlen=length)
        self.count = 0
        """How many there have ever been."""

    def put(self, thing: T) -> None:
        """Add one; the oldest makes place for it."""
        self._things.append(thing)
        self.count += 1

    def put_all(self, things: Sequence[T]) -> None:
        """Add some, the oldest first."""
        self._things.extend(things)
        self.count += len(things)

    def newest(self, after: int = -1) -> Iterator[tuple[int, T]]:
        """Those with a number above `after`, the newest first, each with its number."""
        yield from zip(range(self.count - 1, after, -1), reversed(self._things), strict=False)


class Bounded(defaultdict[K, T]):
    """Makes what is missing; of more than `most` the one that was made first goes."""

    def __init__(self, make: Callable[[], T], most: int) -> None:
        super().__init__(make)
        self._most = most

    def __missing__(self, key: K) -> T:
        if len(self) >= self._most:
            del self[next(iter(self))]
        return super().__missing__(key)
