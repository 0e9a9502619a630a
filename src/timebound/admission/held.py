"""The bytes of clients that this process holds: bodies until they are computed, answers until they are read.

Only what is larger than `SMALL` is counted: a small body costs about as much as the objects around it, and the
number of those is bounded by the connections and the queue. Of pipelined requests that wait for those before them the
small ones count too: one connection has several.
"""

from __future__ import annotations

from collections.abc import Callable

SMALL = 16_384
"""Bytes of a body that are not worth counting."""


class Held:
    """A budget of bytes for all clients together."""

    __slots__ = ("bytes", "limit", "make_room")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.make_room: Callable[[Callable[[], bool]], None] | None = None
        """Lets go of what can be spared until what it is given says that there is enough room."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more could be held now; what nobody waits for goes if not."""
        if self.bytes + size > self.limit and self.make_room is not None:
            self.make_room(lambda: self.bytes + size <= self.limit)
        return self.bytes + size <= self.limit

    @property
    def is_over(self) -> bool:
        """Whether more is held than should be."""
        return self.bytes > self.limit

    def hold(self) -> Hold:
        """Something that holds nothing yet, to grow while bytes come in."""
        return Hold(self)


class Hold:
    """A part of the budget. It is given back when nobody knows this object any more: travel with what it stands for."""

    __slots__ = ("_held", "bytes")

    def __init__(self, held: Held) -> None:
        self._held = held
        self.bytes = 0

    def reach(self, size: int) -> bool:
        """Stand for so many bytes from now on; False, and nothing changes, if there is no room for them."""
        if not self._held.has_room(size - self.bytes):
            return False
        self.stand_for(size)
        return True

    def stand_for(self, size: int) -> None:
        """The same for bytes that are there already, room or no room: others have less then."""
        self._held.bytes += size - self.bytes
        self.bytes = size

    def __del__(self) -> None:
        self._held.bytes -= self.bytes
