"""The listening socket and the connections behind it: opened, looked at once a second, closed in order."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from timebound.errors import SetupError
from timebound.events import Events
from timebound.http.bounded import State
from timebound.http.connection import Connection
from timebound.http.intake import Intake
from timebound.http.routes import Routes

_PARTS = 50
"""In how many parts connections are looked at, within a second."""

_SPARE_FILES = 256
"""Open files besides the connections: workers, Redis, the log, connections that are being turned away."""


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


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate (chain) and key; raises `SetupError` if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key with a passphrase would ask for it on the terminal; a server must not wait there.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one too
        raise SetupError(
            f"the TLS files {certificate} and {key} cannot be used: {error.strerror or error}; give a certificate and "
            "its key without a passphrase, both as PEM"
        ) from None
    return context


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
    ) -> None:
        self._intake = intake
        self._routes = routes
        self._state = state
        self._events = events
        self._tls = tls
        self._config = uvicorn.Config(
            app,
            http=cast(Any, Connection),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a line per malformed request would let strangers fill the disk; they are counted
            access_log=False,
            server_header=False,
            timeout_keep_alive=cast(Any, keep_alive_s),
            proxy_headers=False,
        )
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def open(self, sock: socket.socket) -> None:
        """Start accepting on a bound socket."""
        self._config.load()
        self._write_date()
        loop = asyncio.get_running_loop()
        _allow_open_files(2 * self._state.limits.max_connections + _SPARE_FILES)
        handshake_s = min(10.0, self._state.limits.read_timeout) if self._tls is not None else None
        self._server = await loop.create_server(
            self._connection, sock=sock, backlog=2048, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )
        self._ticker = asyncio.create_task(self._tick())

    def stop_accepting(self) -> None:
        """Take no new connection, and end those that are idle; busy ones end after their answer."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def close(self, patience_s: float) -> None:
        """Wait until the last answer is read, at most `patience_s`; then cut what is left."""
        if self._ticker is not None:
            self._ticker.cancel()
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        while self._state.connections and loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.transport.abort()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._state.connections)

    def _connection(self) -> Connection:
        return Connection(
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
