"""Timebound behind somebody else's port: an ASGI app for uvicorn, hypercorn, Ray Serve, or an app that mounts it.

    # main.py, for: uvicorn main:app
    app = tb.asgi("app.py", workers=1)

It owns the gateway's life. The server in front owns the port, TLS, the connections and the signals.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from timebound.config import Config, of_options
from timebound.errors import Refusal, SetupError
from timebound.gateway import Gateway
from timebound.http.front import HttpFront
from timebound.http.responses import problem_response
from timebound.server import Server, warn_if_nice

log = logging.getLogger("timebound.server")


class _Door(HttpFront):
    """The same way in without a port of its own."""

    def bind(self) -> None:
        """The port is the host's."""

    async def open(self) -> None:
        """So is listening."""

    def stop_accepting(self) -> None:
        """And ending connections."""

    async def close(self, patience_s: float) -> int:
        """The host waits for answers to be read."""
        return 0


class Guest:
    """An ASGI app that serves `target`.

    The host's lifespan messages start and stop it. Where none come, because another app mounts it, that app's own life
    does: `async with guest`.
    """

    is_watching = True
    """Whether it listens for clients that leave; a host that cancels their calls instead saves it that."""
    unseen_s = 0.0
    """What the host takes of each limit, before a request is seen here and after it was answered."""
    says_ids = True
    """Whether answers say their `X-Request-Id`; a host that writes it in each itself saves them that."""
    nice_cure = "start it at 0"
    """What to tell who hosts it at a nice value above 0."""

    def __init__(self, target: Path, config: Config, *, cores: int | None = None) -> None:
        """`cores` is how many to count on, if the host leaves it fewer than the machine has."""
        self._target = target
        self._cores = cores
        self._config = replace(config, drain_delay=0.0)  # when it is told to stop, its host takes no more connections
        self._server: Server | None = None
        self._door: _Door | None = None

    @property
    def gateway(self) -> Gateway:
        """What answers, once it is started: to reload it, to ask for its status."""
        return self._running().gateway

    def signals(self) -> dict[str, float]:
        """`load_ratio` and the others, as the log has them."""
        return self._running().signals.read()

    async def reload(self) -> list[str]:
        """Load the target and the keys again and switch to them; the models served now. Raises `SetupError`."""
        return await self._running().reload()

    def _running(self) -> Server:
        if self._server is None:
            raise SetupError("the app is not started; its server sends lifespan messages, or: async with app")
        return self._server

    async def __aenter__(self) -> Guest:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Have the first worker up; raises `SetupError` if it cannot be. Needs a running event loop."""
        warn_if_nice(self.nice_cure)
        server = Server(self._target, self._config, [_Door], cores=self._cores)
        await server.start()
        (door,) = server.fronts
        assert isinstance(door, _Door)
        door.app.is_watching, door.app.unseen_s = self.is_watching, self.unseen_s
        door.app.says_ids = self.says_ids
        self._server, self._door = server, door

    async def stop(self) -> None:
        """Accept nothing any more, answer what was accepted, and let the workers go."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live as long as the host."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            await send({"type": f"{scope['type']}.close"})
        elif self._door is None:
            detail = (
                "the app was not started: its server must send lifespan messages, or the app that mounts it enter it"
            )
            await problem_response(Refusal(detail, code="not_ready", retry_after_s=1))(scope, receive, send)
        else:
            await self._door.app(_below_root(scope), receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:  # a host that is told nothing more goes on without us
            if not isinstance(error, SetupError):
                log.exception("the app could not start")
            await send({"type": "lifespan.startup.failed", "message": f"timebound: {error}"})
            return
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _below_root(scope: Scope) -> Scope:
    """The same request as if the app that mounts this one had nothing above it."""
    root = scope.get("root_path", "")
    if root and scope["path"].startswith(root):
        return {**scope, "path": scope["path"][len(root) :] or "/", "root_path": ""}
    return scope


def asgi(target: str | Path, **options: Any) -> Guest:
    """`target`, as `timebound serve` takes it, as an ASGI app; `options` are those of `timebound serve`.

    Those that say how to listen have no effect. Raises `SetupError` if an option is wrong.
    """
    return Guest(Path(target), of_options(options))
