"""Sends an answer piece by piece: in chunks on a connection, or to an ASGI server. What lies unread is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from timebound.admission import Hold
from timebound.http.flow import Flow

MOST_UNREAD = 1 << 20
"""Bytes of pieces that may lie unread; a client that is further behind is cut off."""
_SLOW = 1 << 16


class Line(Protocol):
    """The connection that pieces are written to."""

    transport: Any
    unread_hold: Hold | None
    """Counts what lies unread while that is much."""

    def cut(self, code: str) -> None: ...
    def on_response_complete(self) -> None: ...


class Turn(Protocol):
    """A request whose answer this is."""

    keep_alive: bool
    disconnected: bool
    response_complete: bool
    leave: Callable[[], None] | None


class Chunked:
    """Pieces as chunks of one answer; to a client of HTTP/1.0 as they are, up to the end of the connection."""

    def __init__(self, line: Line, turn: Turn, *, is_old: bool) -> None:
        self._line = line
        self._turn = turn
        self._is_old = is_old
        self._unread = 0

    @property
    def is_slow(self) -> bool:
        return bool(self._line.transport.get_write_buffer_size() > _SLOW)

    def begin(self, head: bytes, flow: Flow) -> None:
        """Send the head; the rest comes as it is there."""
        if self._turn.disconnected:
            return
        if self._is_old:
            self._turn.keep_alive = False
        else:
            head += b"transfer-encoding: chunked\r\n"
        if not self._turn.keep_alive:
            head += b"connection: close\r\n"
        self._line.transport.write(head + b"\r\n")
        flow.open(self)

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Send a piece, and finish after the last."""
        if self._turn.disconnected:
            return
        if not self._is_old:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            piece += b"0\r\n\r\n" if is_last else b""
        self._write(piece)
        if is_last:
            self._turn.response_complete, self._turn.leave = True, None
            if not self._turn.keep_alive:
                self._line.transport.close()
            self._line.on_response_complete()
        elif self._unread > MOST_UNREAD:
            self._line.cut("slow_reader")

    def _write(self, piece: bytes) -> None:
        if self._line.transport.is_closing():
            return
        self._line.transport.write(piece)
        self._unread = self._line.transport.get_write_buffer_size()
        if self._line.unread_hold is not None:
            self._line.unread_hold.stand_for(self._unread)


class Relayed:
    """Pieces for an ASGI server, which says by waiting how fast its client reads."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._unread = 0
        self.is_over = False
        """Whether the last piece is here."""

    @property
    def is_slow(self) -> bool:
        return self._unread > _SLOW

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Keep a piece until it can be sent."""
        self._unread += len(piece)
        self.is_over = is_last
        self._pieces.put_nowait((piece, is_last))

    async def send_all(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Send what comes, up to the last piece; also returns when the client is too far behind."""
        is_last = False
        while not is_last and self._unread <= MOST_UNREAD:
            piece, is_last = await self._pieces.get()
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
            self._unread -= len(piece)
