"""Connections whose bytes cost more to parse than they carry, such as bodies in two-byte chunks: read on in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

PIECE = 512
"""Bytes that are parsed between two looks at the clock."""

TURN_S = 0.000_1
TURN_BYTES = 8192
"""How long what is no body is parsed at once for one connection, and how much of it: a KB takes from 1 to 50 us."""

PAUSE_S = 0.001
"""How long everyone else has the event loop before more of that is parsed, for one connection of all that wait."""


class Waiting(Protocol):
    """A connection that waits for more of what it sent to be parsed."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def read_on(self) -> None: ...


class Laborious:
    """All of a listener's connections that wait for that, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def wait(self, connection: Waiting) -> None:
        """Have this connection read on after those that wait already."""
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            connection.loop.call_later(PAUSE_S, self._next)

    def _next(self) -> None:
        connection = self._waiting[0]
        try:
            connection.read_on()
        except BaseException:
            connection.transport.abort()  # what cannot be read on is over, as it is when its bytes come; others go on
            raise
        finally:
            self._waiting.popleft()
            if self._waiting:
                connection.loop.call_later(PAUSE_S, self._next)
