"""HTTP around a gateway: the port, the way in for models' requests, and the server's own routes."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from timebound.admission import Held, Keys, Peers
from timebound.config import Config
from timebound.gateway import Gateway
from timebound.http.access import Access
from timebound.http.admin import Admin
from timebound.http.app import App
from timebound.http.bounded import Limits, State
from timebound.http.control import Control
from timebound.http.cors import Cors
from timebound.http.intake import Intake
from timebound.http.listener import Listener, bind, tls_context
from timebound.http.results import Results
from timebound.http.routes import Routes


class HttpFront:
    """One port. `reload` is what the operator's call does; `metrics` what /metrics shows."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        *,
        reload: Callable[[], Awaitable[list[str]]],
        metrics: Callable[[], tuple[bytes, str]],
    ) -> None:
        self._config = config
        self._keys = Keys(Path(config.keys).expanduser()) if config.keys is not None else None
        self._held = Held(config.max_held or max(256_000_000, 4 * config.max_body))
        self._admin = Admin(config.admin_token, needs_token=self._keys is not None)
        self._access: Access | None = None
        if self._keys is not None:
            self._access = Access(self._keys, self._admin, gateway.clock, has_open_metrics=config.open_metrics)
        self._cors = Cors(config.cors_origins.split(",")) if config.cors_origins is not None else None
        self._routes = Routes()
        gateway.catalogue.listen(self._routes.add, lambda name, successor: self._routes.remove(name))
        intake = Intake(
            gateway.requests,
            clock=gateway.clock,
            events=gateway.events,
            cap_s=config.max_deadline,
            cors=self._cors,
            is_behind=gateway.requests.is_behind,
        )
        tls = tls_context(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
        self._scheme = "http" if tls is None else "https"
        self.address = ""
        """Where it listens, as a URL."""
        self._socket: socket.socket | None = None
        self._listener = Listener(
            self._app(gateway, intake, reload, metrics),
            intake=intake,
            routes=self._routes,
            state=State(
                limits=_limits(config),
                held=self._held,
                peers=Peers(config.max_per_address),
                access=self._access,
                cors=self._cors,
            ),
            keep_alive_s=config.keep_alive,
            events=gateway.events,
            tls=tls,
        )

    def _app(
        self,
        gateway: Gateway,
        intake: Intake,
        reload: Callable[[], Awaitable[list[str]]],
        metrics: Callable[[], tuple[bytes, str]],
    ) -> App:
        admin = self._admin
        return App(
            intake,
            self._routes,
            gateway,
            metrics=metrics,
            results=Results(gateway.store, gateway.requests.is_running, admin, has_clients=self._access is not None),
            control=Control(gateway, reload, admin),
            access=self._access,
            cors=self._cors,
            held=self._held,
            max_body=self._config.max_body,
        )

    def bind(self) -> None:
        """Take the port; raises `SetupError` if it cannot be had."""
        self._socket = bind(self._config.host, self._config.port, is_shared=self._config.reuse_port)
        host, port = self._socket.getsockname()[:2]
        self.address = f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def open(self) -> None:
        """Answer from now on; requests to models as soon as those are there."""
        assert self._socket is not None
        await self._listener.open(self._socket)

    def stop_accepting(self) -> None:
        """Take no new connection; open ones end after their answer."""
        self._listener.stop_accepting()

    async def close(self, patience_s: float) -> None:
        """Wait until the last answer is read, at most so long, and end."""
        await self._listener.close(patience_s)

    def read_again(self) -> None:
        """Take the API keys as their file has them now; raises `SetupError`."""
        if self._keys is not None:
            self._keys.read()

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        return {
            "connections_open": ("Open client connections.", lambda: self._listener.connections),
            "held_bytes": ("Bytes of large bodies and unread answers in memory.", lambda: self._held.bytes),
        }


def _limits(config: Config) -> Limits:
    return Limits(
        max_body=config.max_body,
        max_header=config.max_header,
        max_connections=config.max_connections,
        read_timeout=config.read_timeout,
        write_timeout=config.write_timeout,
    )
