"""The large answers of streams that their clients have not read, counted in the memory that all clients share."""

from __future__ import annotations

from timebound.admission import Held

_SHARE = 0.75
"""Of the memory for large bodies: as much as unread answers of streams may take. The rest is for those who read."""
_COPIES = 2
"""Of an answer that is being written: the message, and gRPC's own copy until the client takes it."""


class Unread:
    """What all streams together have not been rid of."""

    def __init__(self, held: Held) -> None:
        self._limit = _SHARE * held.limit
        self._hold = held.hold()

    def keep(self, answer: bytes) -> int:
        """Count an answer until `let_go` of what this returns; 0 if there is no room, and then it must not be kept.

        One there may be at any time, however large: it could never be sent else.
        """
        size, kept = _COPIES * len(answer), self._hold.bytes
        if not kept:
            self._hold.stand_for(size)
            return size
        return size if kept + size <= self._limit and self._hold.reach(kept + size) else 0

    def let_go(self, size: int) -> None:
        """So much of it has been read, or will not be."""
        self._hold.stand_for(self._hold.bytes - size)
