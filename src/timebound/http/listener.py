"""The listening socket and the connections behind it: opened, looked at once a second, closed in order."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from email.utils import formatdate
from functools import cached_property
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from timebound.errors import SetupError
from timebound.events import Events
from timebound.http.accepting import Accepting
from timebound.http.announced import Announced
from timebound.http.bounded import State
from timebound.http.connection import Connection
from timebound.http.handshakes import Handshakes
from timebound.http.intake import Intake
from timebound.http.routes import Routes

_PARTS = 50
"""In how many parts connections are looked at, within a second."""

_SPARE_FILES = 256
"""Open files besides the connections: workers, Redis, the log, connections that are being turned away."""

_LAST_WORD_S = 1.0
"""How long a connection whose answers have all been read is left to its client to close."""


log = logging.getLogger("timebound.http")


def bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A bound socket; raises `SetupError` if the address cannot be had. A shared one may be bound by several."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
        # Listening from here on: of two servers started on one port the second fails now, not on its first request.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise SetupError(_why(host, port, error)) from None
    return sock


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == 98:
        return f"port {port} is taken on {host}; stop the other server or choose one with --port (0 takes a free one)"
    if error.errno == 13:
        return f"port {port} needs more rights; choose one above 1023 with --port"
    return f"cannot listen on {host} port {port}: {error.strerror}; check --host and --port"


def _allow_open_files(count: int) -> None:
    """Raise this process's own limit on open files as far as needed; more than the system allows is told."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count:
        log.warning("the system allows fewer open files than connections", extra={"files": wanted, "needed": count})


class Listener:
    """Accepts connections and runs `app` on their requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        intake: Intake,
        routes: Routes,
        state: State,
        keep_alive_s: float,
        events: Events,
        tls: ssl.SSLContext | None = None,
        is_announced: bool = False,
    ) -> None:
        self._kind = Announced if is_announced else Connection
        self._intake = intake
        self._routes = routes
        self._state = state
        self._events = events
        self._tls = tls
        self._app = app
        self._keep_alive_s = keep_alive_s
        self._servers: list[Accepting | Handshakes] = []
        self._ticker: asyncio.Task[None] | None = None

    @cached_property
    def _config(self) -> uvicorn.Config:
        # Made when the first port is opened: making it sets the levels of uvicorn's loggers in the whole process, and
        # where we are guests of another uvicorn they are its own.
        return uvicorn.Config(
            self._app,
            http=cast(Any, Connection),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a line per malformed request would let strangers fill the disk; they are counted
            access_log=False,
            server_header=False,
            timeout_keep_alive=cast(Any, self._keep_alive_s),
            proxy_headers=False,
        )

    async def open(self, sock: socket.socket) -> None:
        """Start accepting on a bound socket."""
        self._config.load()
        self._write_date()
        _allow_open_files(2 * self._state.limits.max_connections + _SPARE_FILES)
        if self._tls is not None:
            limit_s = min(10.0, self._state.limits.read_timeout)
            handshakes = Handshakes(
                sock, self._connection, context=self._tls, state=self._state, events=self._events, limit_s=limit_s
            )
            self._servers.append(handshakes)
        else:
            accepting = Accepting(sock, self._connection)
            self._servers.append(accepting)
            await accepting.open()
        self._ticker = asyncio.create_task(self._tick())

    def stop_accepting(self) -> None:
        """Take no new connection, and end those that are idle; busy ones end after their answer."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, patience_s: float) -> int:
        """Wait until the last answer is read, at most `patience_s`, and cut what is left; how many had not read theirs.

        Who does not go on reading is cut earlier, by `Connection.sweep`; who has read all, and stays, a moment later.
        """
        connections = cast("set[Connection]", self._state.connections)
        loop = asyncio.get_running_loop()
        began, cut_before = loop.time(), self._state.cut_off
        while connections and loop.time() < began + patience_s:
            await asyncio.sleep(0.01)
            if loop.time() > began + _LAST_WORD_S:
                for connection in [each for each in connections if not each.unread()]:
                    connection.transport.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        unread = [connection.unread() for connection in connections]
        for connection in list(connections):
            connection.transport.abort()
        self._state.unfinished.close()
        cut = self._state.cut_off - cut_before + sum(size > 0 for size in unread)
        if cut:
            log.error(
                "clients were cut off while they read their answers", extra={"clients": cut, "bytes": sum(unread)}
            )
        return cut

    @property
    def connections(self) -> int:
        """How many are open; of those to be encrypted, from the moment they are accepted."""
        shaking = sum(len(server) for server in self._servers if isinstance(server, Handshakes))
        return len(self._state.connections) + shaking

    def _connection(self) -> Connection:
        return self._kind(
            self._config, self._state, intake=self._intake, routes=self._routes.by_path, events=self._events
        )

    async def _tick(self) -> None:
        """Write the date and look at every connection, once a second.

        A part of them at a time, so that turning many slow clients away is no single long turn of the loop.
        """
        loop = asyncio.get_running_loop()
        while True:
            everyone = cast(list[Connection], list(self._state.connections))
            share = -(-len(everyone) // _PARTS)
            for start in range(0, share * _PARTS, share) if share else ():
                await asyncio.sleep(1.0 / _PARTS)
                now = loop.time()
                for connection in everyone[start : start + share]:
                    if connection in self._state.connections:
                        connection.sweep(now)
            if not share:
                await asyncio.sleep(1.0)
            self._write_date()

    def _write_date(self) -> None:
        date = formatdate(time.time(), usegmt=True).encode()
        self._state.default_headers = [(b"date", date)]
        self._state.head = b"date: %b\r\nx-content-type-options: nosniff\r\n" % date
