"""HTTP around a gateway: the port, the way in for models' requests, and the server's own routes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from timebound import operator_socket
from timebound.admission import Gate
from timebound.clock import wall
from timebound.config import Config
from timebound.gateway import Gateway
from timebound.http.access import Access
from timebound.http.admin import Admin, by_socket
from timebound.http.app import App
from timebound.http.around import around, tracing_of
from timebound.http.bounded import Limits, State
from timebound.http.control import Control
from timebound.http.cors import Cors
from timebound.http.described import Described
from timebound.http.history import HistoryRoutes, Kept
from timebound.http.intake import Intake
from timebound.http.large import Large
from timebound.http.listener import Listener, bind
from timebound.http.live import LiveRoutes, Seen
from timebound.http.management import Management
from timebound.http.oip import OpenInferenceRoutes
from timebound.http.proxies import Proxies
from timebound.http.results import Results
from timebound.http.routes import Routes
from timebound.http.tls import Tls
from timebound.operator_socket import OperatorSocket

log = logging.getLogger("timebound.http")

_OPERATORS_SEATS = 64
"""Connections to the operator's socket: its own, so that no crowd at the port keeps the operator out."""


class Further:
    """One more address with a listener of its own."""

    def __init__(self, address: str, listener: Listener) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.listener = listener
        self._socket: socket.socket | None = None

    def bind(self) -> None:
        """Take the port; raises `SetupError` if it cannot be had."""
        self._socket = bind(self._host, self._port)

    async def open(self) -> None:
        """Answer from now on."""
        assert self._socket is not None
        await self.listener.open(self._socket)

    def let_go(self) -> None:
        """Give the port back, also if it was never opened."""
        if self._socket is not None:
            self._socket.close()


class HttpFront:
    """One port. `reload` is what the operator's call does; `metrics` what /metrics shows."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        *,
        gate: Gate,
        reload: Callable[[], Awaitable[list[str]]],
        metrics: Callable[[str], tuple[bytes, str]],
        live: Seen,
        history: Kept | None = None,
    ) -> None:
        self._config = config
        self._held, self._peers = gate.held, gate.peers
        self._admin = Admin(config.admin_token)
        self._access: Access | None = None
        if gate.keys is not None:
            self._access = Access(gate.keys, self._admin, gateway.clock, has_open_metrics=config.open_metrics)
        self._cors = Cors(config.cors_origins.split(",")) if config.cors_origins is not None else None
        self._routes = Routes()
        gateway.catalogue.listen(self._routes.add, lambda name, successor: self._routes.remove(name))
        intake = Intake(
            gateway.requests,
            clock=gateway.clock,
            events=gateway.events,
            cap_s=config.max_deadline,
            around=around(self._cors, tracing_of(config)),
            is_behind=gateway.requests.is_behind,
            large=Large(
                gateway.reading,
                gateway.loop,
                gateway.clock,
                config.max_deadline,
                held=self._held,
                max_body=config.max_body,
            ),
        )
        self._proxies: Proxies | None = None
        if config.trusted_proxies is not None:
            self._proxies = Proxies(
                config.trusted_proxies, longest_s=config.max_deadline, clock=gateway.clock, wall=wall
            )
        self._tls = Tls(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
        self._scheme = "http" if self._tls is None else "https"
        self.address = ""
        """Where it listens, as a URL."""
        self._socket: socket.socket | None = None
        app = self.app = self._app(gateway, intake, reload=reload, metrics=metrics, live=live, history=history)
        make_listener = partial(
            Listener, intake=intake, routes=self._routes, keep_alive_s=config.keep_alive, events=gateway.events
        )
        state = self._state(config.max_connections)
        self._listener = make_listener(
            app, state=state, tls=self._tls.context if self._tls else None, is_announced=config.proxy_protocol
        )
        self._operators = make_listener(by_socket(app), state=self._state(_OPERATORS_SEATS))
        self._operators_socket: OperatorSocket | None = None
        self._further = [
            Further(address, make_listener(app, state=state, tls=self._tls.context if self._tls else None))
            for address in (config.also_at or "").split(",")
            if address
        ]
        if config.operator_at is not None:
            seats = self._state(_OPERATORS_SEATS)
            self._further.append(Further(config.operator_at, make_listener(by_socket(app), state=seats)))

    def _state(self, seats: int) -> State:
        return State(
            limits=replace(_limits(self._config), max_connections=seats),
            held=self._held,
            peers=self._peers,
            access=self._access,
            cors=self._cors,
            proxies=self._proxies,
        )

    def _app(
        self,
        gateway: Gateway,
        intake: Intake,
        *,
        reload: Callable[[], Awaitable[list[str]]],
        metrics: Callable[[str], tuple[bytes, str]],
        live: Seen,
        history: Kept | None = None,
    ) -> App:
        admin = self._admin
        return App(
            intake,
            self._routes,
            gateway,
            metrics=metrics,
            results=Results(gateway.store, gateway.requests.is_running, admin, has_clients=self._access is not None),
            control=Control(gateway, reload, admin),
            live=LiveRoutes(live, admin),
            management=Management(gateway, admin),
            history=HistoryRoutes(history, gateway, admin, wall, has_clients=self._access is not None),
            open_inference=OpenInferenceRoutes(Described(gateway, metrics), admin, self._access),
            access=self._access,
            cors=self._cors,
            held=self._held,
            proxies=self._proxies,
            peers=self._peers,
            max_body=self._config.max_body,
        )

    def bind(self) -> None:
        """Take the port; raises `SetupError` if it cannot be had."""
        self._socket = bind(self._config.host, self._config.port, is_shared=self._config.reuse_port)
        host, port = self._socket.getsockname()[:2]
        self.address = f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        for further in self._further:
            further.bind()
        if self._config.admin_token is None:
            self._operators_socket = operator_socket.make(port)
            if self._operators_socket is None:
                log.warning("no folder for the operator's socket; set --admin-token to reload or to see results")

    async def open(self) -> None:
        """Answer from now on; requests to models as soon as those are there."""
        assert self._socket is not None
        await self._listener.open(self._socket)
        if self._operators_socket is not None:
            await self._operators.open(self._operators_socket.sock)
        for further in self._further:
            await further.open()

    def stop_accepting(self) -> None:
        """Take no new connection; open ones end after their answer."""
        self._listener.stop_accepting()
        self._operators.stop_accepting()
        for further in self._further:
            further.listener.stop_accepting()

    async def close(self, patience_s: float) -> int:
        """Wait until the last answer is read, at most so long, and end; how many clients had not read theirs."""
        if self._operators_socket is not None:
            self._operators_socket.remove()
        listeners = [self._listener, self._operators, *(further.listener for further in self._further)]
        cut_off = sum(await asyncio.gather(*(listener.close(patience_s) for listener in listeners)))
        # An opened one is closed already; one that was only bound, because the start failed, is not.
        if self._socket is not None:
            self._socket.close()
        if self._operators_socket is not None:
            self._operators_socket.sock.close()
        for further in self._further:
            further.let_go()
        return cut_off

    def read_again(self) -> None:
        """Take the certificate as its files have it now; raises `SetupError`."""
        if self._tls is not None:
            self._tls.read_again()

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
