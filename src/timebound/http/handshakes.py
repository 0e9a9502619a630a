"""Connections that are not encrypted yet: counted from the moment they are accepted, cut when they take too long, told.

The event loop's own server counts a connection when its handshake is done. Here it is accepted first, so that half
handshakes take seats as any connection does, and that those which fail are known.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from timebound.admission.peers import peer_of
from timebound.clock import Clock, MonotonicClock
from timebound.events import Events, TurnedAway
from timebound.http.bounded import State

log = logging.getLogger("timebound.http")

AT_ONCE = 32
"""Connections that are accepted in one turn of the event loop."""
TOLD = 8
"""So many of an address that has too many are let in, to be told so: that needs a handshake."""
_FULL_PAUSE_S = 0.5
"""Before it accepts again when the system has no more files."""
TELL_EVERY_S = 10.0
_SILENT = (ConnectionResetError, BrokenPipeError)
"""They went without a word: whoever only looks whether the port is open does so."""


class Handshakes:
    """Accepts on a socket; `make` makes the protocol of each connection, which meets it when it is encrypted."""

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        context: ssl.SSLContext,
        state: State,
        events: Events,
        limit_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._make = make
        self._context = context
        self._state = state
        self._events = events
        self._limit_s = limit_s
        self._under_way: set[asyncio.Task[None]] = set()
        self._of_peer: Counter[str] = Counter()
        self._again: asyncio.TimerHandle | None = None
        self._failed = Failed()
        sock.setblocking(False)
        sock.listen(2048)
        self._loop.add_reader(sock.fileno(), self._accept)

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def close(self) -> None:
        """Accept nothing any more; handshakes under way are cut."""
        if self._again is not None:
            self._again.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for task in list(self._under_way):
            task.cancel()
        self._failed.tell()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._loop.remove_reader(self._sock.fileno())  # else it would be asked again at once, and for ever
                self._again = self._loop.call_later(
                    _FULL_PAUSE_S, self._loop.add_reader, self._sock.fileno(), self._accept
                )
                return
            self._begin(sock, str(address[0]))

    def _begin(self, sock: socket.socket, address: str) -> None:
        peer, peers, most = peer_of(address), self._state.peers, self._state.limits.max_connections
        proxies = self._state.proxies
        is_one = proxies is None or not proxies.trusts(address)
        if len(self._state.connections) + len(self) >= 2 * most:
            self._cut(sock, "too_many_connections")
        elif is_one and peers.count(peer) + self._of_peer[peer] >= peers.limit + TOLD:
            self._cut(sock, "client_busy")
        else:
            self._of_peer[peer] += 1
            task = self._loop.create_task(self._shake_hands(sock, address))
            self._under_way.add(task)
            task.add_done_callback(lambda task: self._end(task, peer))

    def _cut(self, sock: socket.socket, code: str) -> None:
        sock.close()
        self._events.emit(TurnedAway(code))

    async def _shake_hands(self, sock: socket.socket, address: str) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make, sock, ssl=self._context, ssl_handshake_timeout=self._limit_s
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are such
            sock.close()
            self._events.emit(TurnedAway("tls_handshake"))
            if not isinstance(error, _SILENT):
                self._failed.note(address, _reason(error))
        except BaseException:
            sock.close()
            raise

    def _end(self, task: asyncio.Task[None], peer: str) -> None:
        self._under_way.discard(task)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be taken: %s", error)


class Failed:
    """Handshakes that failed, told in a line now and then: strangers must not fill the log."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._now = (clock or MonotonicClock()).now
        self._told: float | None = None
        self._count = 0
        self._last = ("", "")

    def note(self, address: str, reason: str) -> None:
        """One more."""
        self._count, self._last = self._count + 1, (address, reason)
        if self._told is None or self._now() - self._told >= TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Say so, if there were any."""
        if self._count:
            address, reason = self._last
            facts = {"count": self._count, "last_from": address, "reason": reason}
            log.warning("TLS handshakes failed", extra=facts)
            self._told, self._count = self._now(), 0


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(error) or type(error).__name__
