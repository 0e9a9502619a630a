"""Results that wait to be written to a shared store: bounded, the oldest are dropped first, and counted."""

from __future__ import annotations

from collections import deque

import msgspec

from timebound.events import Events, NotKept
from timebound.store.base import Key

MAX_RESULTS = 10_000
MAX_BYTES = 16_000_000


class Unwritten(msgspec.Struct):
    """A result as bytes, how long it shall be kept, and when it was there to be written."""

    key: Key
    value: bytes
    keep_s: float
    since: float


class Backlog:
    """A queue with a bound."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: deque[Unwritten] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, late: Unwritten) -> None:
        """One more; if that is too many, the oldest are lost."""
        self._waiting.append(late)
        self._bytes += len(late.value)
        while self._bytes > MAX_BYTES or len(self._waiting) > MAX_RESULTS:
            self._events.emit(NotKept(self.take().key[0], "down"))

    def take(self) -> Unwritten:
        """The oldest."""
        late = self._waiting.popleft()
        self._bytes -= len(late.value)
        return late
