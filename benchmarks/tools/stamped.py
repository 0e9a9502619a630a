"""A client whose answers carry the time at which the kernel received them: a reader that is late blames no server."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol

import httptools

from benchmarks.tools.load import HOST
from timebound.lab.load.client import Reply

_CONNECT_S = 5.0
_FRESH_S = 1.0
"""A connection that was idle for longer is not used again: the server may be closing it just now."""
_LISTENED_S = 5.0
"""So long an idle one is listened to: an answer too many would come there."""

_SO_TIMESTAMPING = 37
_RECEIVED_IN_SOFTWARE = 1 << 3 | 1 << 4
"""Linux: stamp what is received (`SOF_TIMESTAMPING_RX_SOFTWARE`), and tell (`SOF_TIMESTAMPING_SOFTWARE`)."""
_STAMP = struct.Struct("@ll")


class Call(Protocol):
    """One request; exactly one of `answered` and `lost` follows, unless the client is closed."""

    def sent(self, at: float) -> None:
        """Its bytes are given to the system now."""

    def answered(self, reply: Reply, received: float, noticed: float) -> None:
        """The answer's last byte was received by the kernel, and seen here a moment later."""

    def lost(self, why: str) -> None:
        """There will be no answer."""


class Stamped:
    """Keep-alive connections, one request at a time on each. `on_unasked` gets answers that nobody waits for."""

    def __init__(self, port: int, now: Callable[[], float], on_unasked: Callable[[Reply], None]) -> None:
        self._port = port
        self.now = now
        self.on_unasked = on_unasked
        self._lines: set[_Line] = set()
        self._idle: list[_Line] = []

    def send(self, request: bytes, call: Call) -> None:
        """Send now, on an idle connection or a new one."""
        while self._idle:
            if not self._idle[-1].is_open:
                self._idle.pop()
            elif self.now() - self._idle[-1].idle_since > _FRESH_S:
                break
            else:
                self._idle.pop().carry(request, call)
                return
        try:
            line = _Line(self, socket.create_connection((HOST, self._port), _CONNECT_S))
        except OSError as error:
            call.lost(f"no connection: {error}")
            return
        self._lines.add(line)
        line.carry(request, call)

    def close(self) -> None:
        """Close all connections; nobody is told."""
        for line in list(self._lines):
            line.close()

    def free(self, line: "_Line") -> None:
        line.idle_since = now = self.now()
        self._idle.append(line)
        # The longest idle are first. None is kept for good: what they cost the server would look like growth.
        while now - self._idle[0].idle_since > _LISTENED_S:
            self._idle.pop(0).close()

    def gone(self, line: "_Line") -> None:
        self._lines.discard(line)


class _Line:
    """One connection."""

    def __init__(self, client: Stamped, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _RECEIVED_IN_SOFTWARE)
        self._client = client
        self._sock = sock
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._whole: list[Reply] = []
        self._call: Call | None = None
        self.idle_since = 0.0
        self.is_open = True
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    def carry(self, request: bytes, call: Call) -> None:
        self._call = call
        # Before the bytes go: what the system takes from here on is the server's time.
        call.sent(self._client.now())
        try:
            if self._sock.send(request) != len(request):
                self._end("the system took only a part of the request")
        except OSError as error:
            self._end(f"not sent: {error}")

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._client.gone(self)

    def _read(self) -> None:
        try:
            data, extra, _, _ = self._sock.recvmsg(1 << 16, 256)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"connection lost: {error}")
            return
        noticed = self._client.now()
        if not data:
            self._end("closed before the answer")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is not HTTP: {error}")
            return
        replies, self._whole = self._whole, []
        for reply in replies:
            self._hand_over(reply, _received(extra, noticed), noticed)

    def _hand_over(self, reply: Reply, received: float, noticed: float) -> None:
        call, self._call = self._call, None
        if call is None:
            self._client.on_unasked(reply)
            return
        call.answered(reply, received, noticed)
        if self._parser.should_keep_alive():
            self._client.free(self)
        else:
            self.close()

    def _end(self, why: str) -> None:
        call, self._call = self._call, None
        self.close()
        if call is not None:
            call.lost(why)

    # ------------------------------------------------------------------ for the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self._whole.append(Reply(self._parser.get_status_code(), self._headers, self._body))
        self._headers, self._body = [], b""


def _received(extra: list[tuple[int, int, bytes]], noticed: float) -> float:
    """When the kernel had these bytes, on the clock of `noticed`; that itself if the kernel does not say."""
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING:
            seconds, nanoseconds = _STAMP.unpack_from(data)
            ago_s = time.time() - (seconds + nanoseconds * 1e-9)
            # The kernel stamps by the wall clock; a step of that clock would show as nonsense.
            return noticed - ago_s if 0.0 <= ago_s < 10.0 else noticed
    return noticed
