"""Connections that have not sent a whole head: of however many have more to say, the event loop hears a few a turn.

The event loop reads what has come on up to a thousand connections in one turn, or learns that they are gone. A crowd
that sent half a request each, and left, made turns of ten milliseconds in which nobody else was heard. So the rest of
a head is not awaited in the loop's own list of files but in one of ours, which is a single file to the loop; and so is
the first word of a connection, where many are open. Most heads come whole, and never meet this.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Protocol

A_TURN = 4
"""So many are heard in one turn of the event loop: a tenth of a millisecond's work."""
CROWD = 32
"""Where more connections than this are open, the first word of a new one is awaited here too."""

_IS_GONE = select.EPOLLERR | select.EPOLLHUP


class Halting(Protocol):
    """A connection whose head is not whole yet."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def hear(self) -> None:
        """More has come."""


class Unfinished:
    """All such connections of a listener."""

    def __init__(self) -> None:
        self._by_file: dict[int, Halting] = {}
        self._epoll: select.epoll | None = None
        self._close: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_file)

    def wait(self, connection: Halting) -> int | None:
        """Read on only when more has come; what to give to `leave` when it ends. Nothing for what has no file."""
        sock = connection.transport.get_extra_info("socket")
        file: int = -1 if sock is None else sock.fileno()
        if file < 0:
            return None
        epoll = self._epoll or self._open(connection.loop)
        connection.transport.pause_reading()
        epoll.register(file, select.EPOLLIN | select.EPOLLRDHUP)
        self._by_file[file] = connection
        return file

    def leave(self, file: int) -> None:
        """This connection ends; to be called before its file is closed."""
        if self._by_file.pop(file, None) is not None and self._epoll is not None:
            self._epoll.unregister(file)

    def close(self) -> None:
        """Hear nothing any more."""
        self._by_file.clear()
        self._close()

    def _open(self, loop: asyncio.AbstractEventLoop) -> select.epoll:
        epoll = self._epoll = select.epoll()
        loop.add_reader(epoll.fileno(), self._hear)

        def close() -> None:
            loop.remove_reader(epoll.fileno())
            epoll.close()
            self._epoll, self._close = None, lambda: None

        self._close = close
        return epoll

    def _hear(self) -> None:
        assert self._epoll is not None
        for file, what in self._epoll.poll(0, A_TURN):
            self._epoll.unregister(file)
            connection = self._by_file.pop(file)
            if what & _IS_GONE:
                connection.transport.abort()  # nobody is there who could be answered
            else:
                connection.hear()
