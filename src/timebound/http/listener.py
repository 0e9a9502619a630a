"""The listening socket and the connections behind it: opened, swept once a second, closed in order."""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from timebound.errors import SetupError
from timebound.http.app import App
from timebound.http.connection import Connection, Limits
from timebound.http.hot import HotPath


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


class Listener:
    """Accepts connections and runs `app` on their requests."""

    def __init__(self, app: App, *, hot: HotPath, limits: Limits, keep_alive_s: float) -> None:
        self._app = app
        self._hot = hot
        self._limits = limits
        self._config = uvicorn.Config(
            app,
            http=cast(Any, Connection),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=cast(Any, keep_alive_s),
            proxy_headers=False,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def open(self, sock: socket.socket) -> None:
        """Start accepting on a bound socket."""
        self._config.load()
        self._tick()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=sock, backlog=2048)
        self._ticker = asyncio.create_task(self._tick_every_second())

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
            self._config, self._state, {}, limits=self._limits, hot=self._hot, hot_routes=self._app.hot_routes
        )

    async def _tick_every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._tick()

    def _tick(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        now = asyncio.get_running_loop().time()
        for connection in list(self._state.connections):
            cast(Connection, connection).sweep(now)
