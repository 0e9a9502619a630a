"""A whole stack on one machine: Redis, servers and nginx, started in this order and stopped in the reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

import msgspec

from timebound.clock import Clock
from timebound.config import Config
from timebound.errors import SetupError
from timebound.machine.cores import cores
from timebound.stack.part import Part
from timebound.stack.places import check_places, operator_address
from timebound.stack.ports import check_free
from timebound.stack.workers import children, takes_requests

log = logging.getLogger("timebound.stack")

_HERE = Path(__file__).parent
_PATIENCE_S = 1.0
"""For an answer that shows that a part is there."""
_LAST_WORDS_S = 5.0
"""What a server may take to leave beyond the times that it is given."""
_RELOAD_S = 5.0
"""What nginx may take to be done with its old configuration; it takes tenths of a second."""
_LOOK_EVERY_S = 0.02
_HOST = "127.0.0.1"
"""Where the servers listen: for nginx, on this machine."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run: `arguments` are those of `timebound serve`, target included, but address and store."""

    arguments: Sequence[str]
    replicas: int
    config: Config
    store: str | None = None
    """A Redis that runs already; without, one is started."""


class Stack:
    """Redis, `replicas` servers on the ports behind the main one, and nginx on that; sockets and files in `folder`."""

    def __init__(self, plan: Plan, folder: Path, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._folder = folder
        self._cores = allowed(sorted(os.sched_getaffinity(0)), cores(), os.getpid())
        config = plan.config
        self.address = f"http://{_place(config)}"
        """Where nginx listens."""
        self.redis = self._redis() if plan.store is None else None
        self.servers = [self._server(number) for number in range(1, plan.replicas + 1)]
        self.nginx = self._nginx()
        self._changing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> list[int]:
        """Where the servers listen."""
        return [self._port(number) for number in range(1, len(self.servers) + 1)]

    @property
    def _patience_s(self) -> float:
        """How long a server that is to leave is waited for."""
        config = self._plan.config
        return config.drain_delay + config.grace + _LAST_WORDS_S

    @property
    def _parts(self) -> list[Part]:
        return [*([self.redis] if self.redis is not None else []), *self.servers, self.nginx]

    async def start(self) -> None:
        """Return when all of it answers; raises `SetupError` if a part cannot start. `stop` follows in any case."""
        async with self._changing:
            check_free(self._plan.config.host, self._plan.config.port, "nginx")
            for number in range(1, len(self.servers) + 1):
                self._check_ports(number)
            if self.redis is not None:
                await self.redis.start()
            await asyncio.gather(*(server.start() for server in self.servers))
            await self.nginx.start()

    async def stop(self) -> None:
        """Nobody new comes in; then what is under way is answered; Redis keeps the answers until all are given."""
        await self.nginx.stop(self._plan.config.grace)
        await asyncio.gather(*(server.stop(self._patience_s) for server in self.servers), *self._leaving)
        if self.redis is not None:
            await self.redis.stop(_LAST_WORDS_S)

    def kill(self) -> None:
        """End all of it now."""
        for part in self._parts:
            part.kill()

    def reload(self) -> None:
        """Have every server load its target again."""
        for server in self.servers:
            server.signal(signal.SIGHUP)

    async def grow(self) -> None:
        """One server more: nginx is told of it when it is ready."""
        async with self._changing:
            number = len(self.servers) + 1
            try:
                check_places(self._plan.config, number)
            except SetupError as error:
                raise SetupError(f"server {number} is not started: {error}") from None
            self._check_ports(number)
            server = self._server(number)
            try:
                await server.start()
            except BaseException:
                server.kill()
                raise
            self.servers.append(server)
            await self._tell_nginx()

    async def shrink(self) -> None:
        """One server fewer, but never none: nginx leaves it alone first, and then it finishes what it has."""
        async with self._changing:
            if len(self.servers) > 1:
                server = self.servers.pop()
                await self._tell_nginx()
                leaving = asyncio.create_task(server.stop(self._patience_s))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                await asyncio.shield(leaving)  # who is told to stop now waits for it too

    async def _tell_nginx(self) -> None:
        """Return when nothing of nginx gives new requests to the servers that it had before."""
        self._write_configuration()
        if self.nginx.pid is None:  # it is started again, and reads the new one then
            return
        before = children(self.nginx.pid)
        self.nginx.signal(signal.SIGHUP)
        end = self._clock.now() + _RELOAD_S
        while any(map(takes_requests, before)):
            if self._clock.now() > end:
                log.warning("nginx goes on with its old configuration; its lines above say why")
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    # ------------------------------------------------------------------ the parts

    def _port(self, number: int) -> int:
        return self._plan.config.port + number

    def _check_ports(self, number: int) -> None:
        check_free(_HOST, self._port(number), f"server {number}")
        operator_at = operator_address(self._plan.config.operator_at, number)
        if operator_at is not None and operator_at[1]:
            check_free(*operator_at, f"the operator of server {number}", "--operator-at")

    def _redis(self) -> Part:
        path = self._folder / "redis.sock"
        where = ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--dir", str(self._folder)]
        nothing = ["--save", "", "--appendonly", "no", "--logfile", str(self._folder / "redis.log")]
        full = ["--maxmemory", "256mb", "--maxmemory-policy", "volatile-ttl"]
        command = [_program("redis-server", "--store redis://HOST:6379/0"), *where, *nothing, *full]
        return Part("Redis", command, is_there=lambda: _answers(path, b"PING\r\n", b"+PONG"), clock=self._clock)

    def _server(self, number: int) -> Part:
        """One of them, on its share of the cores, so that it knows how many it really has."""
        port = self._port(number)
        store = self._plan.store or f"unix://{self._folder / 'redis.sock'}"
        # It believes nginx: deadlines count from when a request came there, and limits hold for its real sender.
        believed = ",".join(filter(None, (_HOST, self._plan.config.trusted_proxies)))
        address = ["--host", _HOST, "--port", str(port), "--store", store, "--trusted-proxies", believed]
        operator_at = operator_address(self._plan.config.operator_at, number)
        if operator_at is not None:
            host, at = operator_at
            address += ["--operator-at", f"[{host}]:{at}" if ":" in host else f"{host}:{at}"]
        ask = b"GET /readyz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
        return Part(
            f"server {number} (port {port})",
            [sys.executable, "-m", "timebound", "serve", *self._plan.arguments, *address],
            is_there=lambda: _answers((_HOST, port), ask, b"HTTP/1.1 200"),
            clock=self._clock,
            port=port,
            cores=share_of(self._cores, number - 1, max(number, self._plan.replicas)),
        )

    def _nginx(self) -> Part:
        config = self._plan.config
        self._write_configuration()
        program = _program("nginx", "", "/usr/sbin/nginx")
        command = [program, "-p", str(self._folder), "-e", "stderr", "-c", str(self._folder / "nginx.conf")]
        ask = b"GET /livez HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
        there = lambda: _answers((config.host, config.port), ask, b"HTTP/1.1 200")  # noqa: E731
        return Part("nginx", command, is_there=there, clock=self._clock, port=config.port, farewell=signal.SIGQUIT)

    def _write_configuration(self) -> None:
        servers = [f"{_HOST}:{port}" for port in self.ports]
        (self._folder / "nginx.conf").write_text(configuration(self._plan.config, servers, self._folder))


def configuration(config: Config, addresses: Sequence[str], folder: Path) -> str:
    """What nginx is told; `addresses` are the servers', as HOST:PORT."""
    servers = "\n".join(f"        server {address} max_fails=2 fail_timeout=1s;" for address in addresses)
    return Template((_HERE / "nginx.conf").read_text()).substitute(
        folder=folder,
        processes=max(1, cores() // 2),
        servers=servers,
        listen=_place(config),
        about="Written by `timebound up`; it goes when that ends.",
        **limits(config),
    )


def _place(config: Config) -> str:
    """Where nginx listens, as URLs and nginx have it."""
    return f"[{config.host}]:{config.port}" if ":" in config.host else f"{config.host}:{config.port}"


def limits(config: Config) -> dict[str, object]:
    """What the servers allow, and nginx before them."""
    times = {name: f"{1000 * getattr(config, name):.0f}ms" for name in ("read_timeout", "write_timeout", "keep_alive")}
    return {"max_body": config.max_body, "patience": f"{int(config.max_deadline) + 5}s", **times}


def allowed(usable: Sequence[int], count: int, place: int) -> list[int]:
    """Those to divide, if a quota allows only so many of them; which ones, differs by `place`.

    A server counts the cores that it may run on, and knows the quota, but not who shares it.
    """
    start = place * count % len(usable)
    return sorted([*usable[start:], *usable[:start]][:count])


def share_of(cores: Sequence[int], place: int, replicas: int) -> set[int]:
    """The cores of one of several servers: as even as can be, one at least, shared where there are more servers."""
    if replicas >= len(cores):
        return {cores[place % len(cores)]}
    return set(cores[place::replicas])


def _program(name: str, instead: str, *places: str) -> str:
    found = shutil.which(name) or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        other = f", or give {instead}" if instead else ""
        package = "nginx-light" if name == "nginx" else name
        raise SetupError(f"{name} is not installed; on Debian: apt install {package}{other}")
    return found


async def _answers(where: tuple[str, int] | Path, question: bytes, right: bytes) -> bool:
    """Whether somebody listens at this address or socket who answers as wanted."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            if isinstance(where, Path):
                reader, writer = await asyncio.open_unix_connection(where)
            else:
                reader, writer = await asyncio.open_connection(*where)
            try:
                writer.write(question)
                return (await reader.read(len(right))).startswith(right)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
