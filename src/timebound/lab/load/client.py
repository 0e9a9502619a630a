"""An HTTP/1.1 client that costs little: keep-alive connections, one request at a time on each, no task per request."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from timebound.clock import Clock, MonotonicClock
from timebound.errors import SetupError

MOST_CONNECTIONS = 2000
# A connection that idled so long may have been closed by the server at the moment of sending; that is nobody's loss.
STALE_S = 1.0
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Address:
    """Where a server is, resolved once; `host_header` is what requests say it is."""

    ip: str
    port: int
    host: str
    host_header: str
    tls: ssl.SSLContext | None = None


def resolve(url: str, *, verify: bool = True) -> Address:
    """The address in an http:// or https:// URL; raises `SetupError` if it has none."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SetupError(f"{url} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise SetupError(f"{url} is no URL of a server; write it as http://host:port/path")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    if tls and not verify:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    port = port or (443 if tls else 80)
    try:
        ip = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SetupError(f"there is no address for {host}: {error.strerror}; check the URL") from None
    return Address(ip, port, host, parts.netloc.rpartition("@")[2], tls)


@dataclass(slots=True)
class Reply:
    """An answer as it came."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> str:
        """The value of a header by its name in lower case; empty if it is not there."""
        for known, value in self.headers:
            if len(known) == len(name) and known.lower() == name:
                return value.decode("latin-1")
        return ""

    @property
    def quality(self) -> str:
        """How much of the model is in it; a server that does not say so gives all."""
        return self.header(b"timebound-quality") or "full"

    @property
    def source(self) -> str:
        """How the answer came about; empty if the server does not say."""
        return self.header(b"timebound-source")

    @property
    def members(self) -> int:
        """How many members answered; 0 if the server does not say."""
        return int(self.header(b"timebound-members").partition("/")[0] or 0)


class Call(ABC):
    """One sending of a request's bytes. Exactly one of `answered` and `lost` follows, unless it is abandoned."""

    __slots__ = ("request", "wire")

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.wire: _Wire | None = None

    def sent(self) -> None:  # noqa: B027 - who does not care need not say so
        """The bytes have been given to the system."""

    @abstractmethod
    def answered(self, reply: Reply) -> None:
        """The whole answer is here."""

    @abstractmethod
    def lost(self, why: str) -> None:
        """There will be none."""


class Client:
    """All connections to one server. Calls wait for one only when `most_connections` are busy."""

    def __init__(self, address: Address, clock: Clock, *, most_connections: int = MOST_CONNECTIONS) -> None:
        self._address = address
        self._clock = clock
        self._most = most_connections
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Wire] = []
        self._wires: set[_Wire] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._waiting: deque[Call] = deque()
        # So far: connections opened, calls sent again because theirs had gone stale, calls that found all busy.
        self.connections = 0
        self.stale = 0
        self.held_back = 0

    def send(self, call: Call) -> None:
        """Send now on an idle connection, or on a fresh one once it is open."""
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                wire.carry(call, self._clock.now())
                return
        self._waiting.append(call)
        self.held_back += len(self._wires) >= self._most
        self._connect_if_wanted()

    def abandon(self, call: Call) -> None:
        """Give a call up; its connection is closed, as a client that leaves does."""
        if call.wire is not None:
            call.wire.abandon()
            return
        with suppress(ValueError):  # it is over
            self._waiting.remove(call)

    async def close(self) -> None:
        """Close all connections; calls under way are dropped in silence."""
        self._waiting.clear()
        for task in self._connecting:
            task.cancel()
        for wire in list(self._wires):
            wire.abandon()
        if self._connecting:
            await asyncio.wait(self._connecting)
        await asyncio.sleep(0)  # lets aborted transports finish

    def _connect_if_wanted(self) -> None:
        """Open a connection for each call that waits, as far as there may be more of them."""
        while len(self._connecting) < len(self._waiting) and len(self._wires) + len(self._connecting) < self._most:
            task = self._loop.create_task(self._open())
            self._connecting.add(task)
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._connect_if_wanted()

    async def _open(self) -> None:
        place = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: _Wire(self),
                    place.ip,
                    place.port,
                    ssl=place.tls,
                    server_hostname=place.host if place.tls else None,
                )
        except TimeoutError:
            self._fail_one("no connection in time")
        except OSError as error:
            self._fail_one(_reason(error))

    def _fail_one(self, why: str) -> None:
        """A connection that cannot be opened fails the call it was opened for, which has waited longest."""
        if self._waiting:
            self._waiting.popleft().lost(why)

    # ------------------------------------------------------------------ called by connections

    def opened(self, wire: _Wire) -> None:
        self._wires.add(wire)
        self.connections += 1
        self.release(wire)

    def release(self, wire: _Wire) -> None:
        """A connection is free: for the call that waits longest, or for a later one."""
        if self._waiting:
            wire.carry(self._waiting.popleft(), self._clock.now())
        else:
            wire.idle_since = self._clock.now()
            self._idle.append(wire)

    def closed(self, wire: _Wire) -> None:
        self._wires.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)
        self._connect_if_wanted()

    def send_again(self, call: Call) -> None:
        self.stale += 1
        self.send(call)


class _Wire(asyncio.Protocol):
    """One connection: carries one call at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._call: Call | None = None
        self._whole: Reply | None = None
        self._has_head = False
        self._stays = False
        self._is_heard = False  # some of the answer has come
        self._was_idle_s = 0.0
        self.idle_since = 0.0
        self.is_open = False

    # ------------------------------------------------------------------ for the client

    def carry(self, call: Call, now: float) -> None:
        self._was_idle_s = now - self.idle_since if self.idle_since else 0.0
        self._is_heard = False
        self._call = call
        call.wire = self
        self._transport.write(call.request)
        call.sent()

    def abandon(self) -> None:
        self._drop_call()
        self.is_open = False
        self._transport.abort()

    # ------------------------------------------------------------------ for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it
        self.is_open = True
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        self._is_heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("answer is not HTTP")
            return
        if self._whole is not None:
            self._finish(self._whole)

    def eof_received(self) -> None:
        self.is_open = False  # nothing more is sent here; the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        call = self._drop_call()
        self._client.closed(self)
        if call is None:
            return
        if not error and self._has_head and self._ends_with_connection():
            call.answered(self._reply())
        elif not self._is_heard and self._was_idle_s >= STALE_S:
            self._client.send_again(call)
        else:
            call.lost(_reason(error) if error else "closed before the answer")

    # ------------------------------------------------------------------ for the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        reply = self._reply()
        if reply.status < 200:  # "100 Continue": the answer is still to come
            return
        if self._whole is not None or self._call is None:
            raise httptools.HttpParserError("an answer that nobody asked for")
        self._whole = reply
        self._stays = self._parser.should_keep_alive()  # it forgets with the next byte

    # ------------------------------------------------------------------ own

    def _finish(self, reply: Reply) -> None:
        self._whole = None
        call = self._drop_call()
        # First the connection, then the news: who hears it may send at once, and should find it free.
        if self._stays and self.is_open:
            self._client.release(self)
        else:
            self.is_open = False
            self._transport.close()
        if call is not None:
            call.answered(reply)

    def _reply(self) -> Reply:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        reply = Reply(self._parser.get_status_code(), self._headers, body)
        self._headers, self._body, self._has_head = [], [], False
        return reply

    def _ends_with_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return b"content-length" not in names and b"transfer-encoding" not in names

    def _drop_call(self) -> Call | None:
        call, self._call = self._call, None
        if call is not None:
            call.wire = None
        return call

    def _fail(self, why: str) -> None:
        call = self._call
        self.abandon()
        if call is not None:
            call.lost(why)


def _reason(error: Exception) -> str:
    """Why a connection failed, in few words that are the same each time."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "connection reset"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__


class _Fetch(Call):
    """A call that somebody awaits."""

    __slots__ = ("reply",)

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answered(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def lost(self, why: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(ConnectionError(why))


async def fetch(address: Address, request: bytes, timeout_s: float) -> Reply:
    """One answer over a connection of its own; raises `ConnectionError` or `TimeoutError`."""
    client = Client(address, MonotonicClock())
    call = _Fetch(request)
    try:
        client.send(call)
        async with asyncio.timeout(timeout_s):
            return await call.reply
    finally:
        await client.close()
