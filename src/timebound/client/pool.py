"""Connections that wait for the next call, for either client."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Generic, Protocol, TypeVar

from timebound.client.address import Address

IDLE_S = 60.0
"""After so long an idle connection is not used again: servers close theirs after 75 s, and a proxy may forget it."""


class Connection(Protocol):
    """What the pool must know of one."""

    idle_since: float

    def is_usable(self) -> bool: ...

    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Connection)


class Pool(Generic[Kept]):
    """Idle connections by server, the last one used first. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[Address, list[Kept]] = defaultdict(list)
        self._is_open = True

    def take(self, address: Address, now: float) -> Kept | None:
        """A connection that seems good, which is the caller's from now on."""
        while True:
            with self._lock:
                if not self._idle[address]:
                    return None
                connection = self._idle[address].pop()
            if now - connection.idle_since < IDLE_S and connection.is_usable():
                return connection
            connection.close()

    def put(self, address: Address, connection: Kept, now: float) -> None:
        """Keep a connection whose answer was read to the end."""
        connection.idle_since = now
        with self._lock:
            if self._is_open:
                self._idle[address].append(connection)
                return
        connection.close()

    def drop(self, address: Address) -> None:
        """Close what is kept of a server that broke a connection: the others are as old."""
        with self._lock:
            dropped = self._idle.pop(address, [])
        for connection in dropped:
            connection.close()

    def close(self) -> list[Kept]:
        """Close what is idle now, and keep nothing from here on; returns what was closed."""
        with self._lock:
            self._is_open = False
            closed = [connection for several in self._idle.values() for connection in several]
            self._idle.clear()
        for connection in closed:
            connection.close()
        return closed
