"""The body of an answer that is sent piece by piece, between who makes the pieces and who sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Outlet(Protocol):
    """Who sends the pieces on."""

    @property
    def is_slow(self) -> bool:
        """Whether so much lies unread that what can be left out had better be."""

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Send it; the last one may be empty."""


class Flow(bytes):
    """Pieces on their way; open it before the first one comes.

    It goes where a whole body goes, past everything that only looks at heads, to who sends it.
    """

    def __init__(self) -> None:
        self._outlet: Outlet | None = None
        self.is_over = False
        """Whether the last piece is on its way."""

    def open(self, outlet: Outlet) -> None:
        """Pieces go here from now on."""
        self._outlet = outlet

    @property
    def is_slow(self) -> bool:
        """Whether its client does not keep up."""
        return self._outlet is not None and self._outlet.is_slow

    def put(self, piece: bytes, *, is_last: bool = False) -> None:
        """One more piece; after the last one nothing is sent."""
        if not self.is_over and self._outlet is not None:
            self.is_over = is_last
            self._outlet.take(piece, is_last=is_last)


Respond: TypeAlias = Callable[[int, bytes, bytes], None]
"""Takes status, header lines (each ended by CRLF) and body, which may be a `Flow`."""
