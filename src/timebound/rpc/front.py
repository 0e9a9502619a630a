"""A port of its own for gRPC around a gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from timebound.admission import Gate
from timebound.config import Config
from timebound.errors import SetupError
from timebound.gateway import Gateway
from timebound.http.around import around, tracing_of
from timebound.http.described import Described
from timebound.http.intake import Intake
from timebound.http.large import Large
from timebound.http.tls import tls_context
from timebound.rpc import health, service
from timebound.rpc.callers import Callers
from timebound.rpc.calls import Reading
from timebound.rpc.health import Health
from timebound.rpc.inference import Inference, RpcRoutes
from timebound.rpc.memory import keep_memory
from timebound.rpc.reflection import VERSIONS, Reflection
from timebound.rpc.service import Service

log = logging.getLogger("timebound.rpc")

_STREAMS = 1_024
"""Calls that one connection may have open; clients keep further ones back."""
_MORE = 65_536
"""Bytes of a message beside what --max-body bounds."""
_PING_S = 10
"""How often a client may ask whether its connection still stands."""


class RpcFront:
    """One port."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        *,
        gate: Gate,
        metrics: Callable[[str], tuple[bytes, str]],
        **_: Any,
    ) -> None:
        self._config = config
        self.address = ""
        """Where it listens, as a URL."""
        routes = RpcRoutes()
        gateway.catalogue.listen(routes.add, lambda name, successor: routes.remove(name))
        described = Described(gateway, metrics)
        callers = Callers(gate.keys, config.admin_token, gateway.clock)
        reading = Reading(gate.held, max_body=config.max_body, timeout_s=config.read_timeout)
        self._inference = Inference(
            _intake(gateway, config, gate),
            routes,
            described,
            callers,
            reading,
            held=gate.held,
            peers=gate.peers,
            events=gateway.events,
        )
        self._certificate = (
            _Certificate(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
        )
        self._services = self._mounted(Service(described, callers, reading), reading, lambda: described.is_ready)
        self._server: Any = None
        self._ending: asyncio.Task[None] | None = None

    def _mounted(self, described: Service, reading: Reading, is_ready: Callable[[], bool]) -> dict[str, dict[str, Any]]:
        names = [service.NAME, health.NAME]
        reflections = [Reflection(version, names, reading) for version in VERSIONS]
        names += [each.name for each in reflections]
        return {
            service.NAME: described.methods() | self._inference.methods(),
            health.NAME: Health(is_ready, names[:1], self._inference.closing, reading).methods(),
            **{each.name: each.methods() for each in reflections},
        }

    def bind(self) -> None:
        """Take the port; raises `SetupError` if it cannot be had."""
        config = self._config
        self._server = grpc.aio.server(options=_options(config), maximum_concurrent_rpcs=config.max_connections)
        for name, methods in self._services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        host = f"[{config.host}]" if ":" in config.host else config.host
        where = f"{host}:{config.grpc_port}"
        try:
            if self._certificate is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, self._certificate.credentials())
        except RuntimeError:
            raise SetupError(
                f"gRPC cannot listen on {where}: the port is in use, or the address is not this machine's; choose "
                "another --grpc-port, or 0 for a free one"
            ) from None
        self.address = f"{'grpc' if self._certificate is None else 'grpcs'}://{host}:{port}"

    async def open(self) -> None:
        """Answer from now on; requests to models as soon as those are there.

        gRPC must not be running where a process forks: its threads are not in the child. Workers may come and go
        all the same, for they are started by `posix_spawn` (workers/spawn.py), in which none of gRPC's handlers runs.
        """
        keep_memory()
        await self._server.start()
        log.info("listening for gRPC", extra={"at": self.address})

    def stop_accepting(self) -> None:
        """Take no new connection and no new call; open ones go on, but streams on which nothing is asked end."""
        if self._ending is None and self._server is not None:
            self._ending = asyncio.ensure_future(self._server.stop(self._config.grace + self._config.max_deadline))
        if not self._inference.closing.done():
            self._inference.closing.set_result(None)

    async def close(self, patience_s: float) -> int:
        """Wait until the last call has ended, at most so long, and end; how many had not."""
        self.stop_accepting()
        if self._ending is None:
            return 0
        cut_off = 0
        try:
            await asyncio.wait_for(asyncio.shield(self._ending), patience_s)
        except TimeoutError:
            cut_off = self._inference.calls
            await self._server.stop(None)
        return cut_off

    def read_again(self) -> None:
        """Take the certificate as its files have it now; raises `SetupError`."""
        if self._certificate is not None:
            self._certificate.read()

    def gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        """What metrics show of it: name -> (help, read)."""
        return {"grpc_calls_open": ("Open requests by gRPC.", lambda: self._inference.calls)}


def _intake(gateway: Gateway, config: Config, gate: Gate) -> Intake:
    large = Large(
        gateway.reading, gateway.loop, gateway.clock, config.max_deadline, held=gate.held, max_body=config.max_body
    )
    return Intake(
        gateway.requests,
        clock=gateway.clock,
        events=gateway.events,
        cap_s=config.max_deadline,
        around=around(None, tracing_of(config)),
        large=large,
    )


def _options(config: Config) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_body + _MORE),
        ("grpc.max_send_message_length", -1),
        # Packed messages come as they are: gRPC would unpack a thousandfold without a bound.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.max_metadata_size", config.max_header),
        ("grpc.absolute_max_metadata_size", config.max_header),
        ("grpc.max_connection_idle_ms", int(1e3 * max(1.0, config.keep_alive))),
        ("grpc.server_handshake_timeout_ms", int(1e3 * config.read_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000 * _PING_S),
        ("grpc.so_reuseport", int(config.reuse_port)),
    ]


class _Certificate:
    """A certificate and its key as gRPC wants them: it asks for them at every handshake."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = certificate, key
        self.read()

    def read(self) -> None:
        """Use the files as they are now for new connections; raises `SetupError`, and the old ones stay in use."""
        tls_context(*self._files)  # says what is wrong with them
        certificate, key = (Path(file).read_bytes() for file in self._files)
        self._current = grpc.ssl_server_certificate_configuration([(key, certificate)])

    def credentials(self) -> Any:
        """What a port is made with."""
        return grpc.dynamic_ssl_server_credentials(self._current, lambda: self._current)
