"""New connections are let in beside everything else that the event loop does: one a turn, and more if turns are long.

uvloop accepts one connection a turn for each listening file. That is enough while turns are short: a crowd that comes,
leaves and comes again then lengthens no turn by more than one of it. When turns are long, clients that all connect at
once would wait for as many of them, unseen and unread, so what waits besides is accepted here, as a share of the time
that has passed. (Sixteen listening files would do as well for such a crowd; but the system tells each of them of every
connection, and one that comes alone costs fifteen calls that find nothing.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from timebound.clock import Clock, MonotonicClock

log = logging.getLogger("timebound.http")

MOST_AT_ONCE = 16
"""Connections that one turn of the event loop accepts."""
SHARE = 1 / 3
"""Of the time since connections were last accepted: so much may be spent on more than one. What is accepted makes the
next turn longer, so more than the whole would feed on itself."""
CONNECTION_S = 50e-6
"""What one takes of the event loop's time, from its coming to its going."""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Pace:
    """How many connections may be accepted now, by the time since it was asked last."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._now = (clock or MonotonicClock()).now
        self._asked = self._now()

    def allowed(self) -> int:
        """At least one."""
        now = self._now()
        passed_s, self._asked = now - self._asked, now
        return min(MOST_AT_ONCE, 1 + int(passed_s * SHARE / CONNECTION_S))


class Accepting:
    """A listening socket, and the connections it lets in; `make` makes the protocol of each."""

    def __init__(self, sock: socket.socket, make: Callable[[], asyncio.Protocol], clock: Clock | None = None) -> None:
        self._sock = sock
        self._make = make
        self._pace = Pace(clock)
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept from now on."""
        create = self._loop.create_unix_server if self._sock.family == socket.AF_UNIX else self._loop.create_server
        self._server = await create(self._let_in, sock=self._sock, backlog=2048)

    def close(self) -> None:
        """Accept nothing any more."""
        if self._server is not None:
            self._server.close()

    def _let_in(self) -> asyncio.Protocol:
        """The protocol of a connection that uvloop has accepted; and others that wait, if there is time for them."""
        for _ in range(self._pace.allowed() - 1):
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                break  # uvloop meets the same, and keeps off for a while
            task = self._loop.create_task(self._begin(sock))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return self._make()

    async def _begin(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, sock)
        except BaseException as error:
            sock.close()
            if not isinstance(error, Exception):
                raise
            log.error("a connection could not be taken: %s", error)
