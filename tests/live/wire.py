"""One TCP connection to a server, for sending any bytes, whole or in parts, and reading answers one by one."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.unread import is_read

_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """One HTTP answer as it came; `is_whole` unless the connection ended in its middle."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool = True

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A client that keeps to no rules but its own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._unread = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def encrypt(self) -> None:
        """Speak TLS from here on, whatever certificate is shown."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(self._socket)

    def move_to(self, path: Path | None) -> None:
        """Talk to this Unix socket instead."""
        self._socket.close()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect(str(path))

    def send(self, *parts: bytes) -> None:
        """Send these bytes, all of them, in one go."""
        self._socket.sendall(b"".join(parts))

    @property
    def is_read(self) -> bool:
        """Whether the server has read everything that was sent."""
        return is_read(self._socket)

    def send_some(self, data: bytes) -> int:
        """Send as much of these bytes as goes out at once; how many."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def read(self) -> Answer:
        """The next answer."""
        while b"\r\n\r\n" not in self._unread:
            assert self.take_in(), f"the connection ended before an answer: {bytes(self._unread)!r}"
        first, *lines = self._cut(self._unread.index(b"\r\n\r\n") + 4).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        size = int(headers.get("content-length", 0))
        while len(self._unread) < size and self.take_in():
            pass
        body = self._cut(size)
        return Answer(int(first.split()[1]), headers, body, is_whole=len(body) == size)

    def read_to_end(self) -> bytes:
        """Everything that still comes until the server closes; fails if it does not."""
        while self.take_in():
            pass
        return self._cut(len(self._unread))

    def take_in(self, at_most: int = 1 << 16) -> bool:
        """Receive some of what the server sends, for a later `read`; False at the end."""
        try:
            data = self._socket.recv(at_most)
        except ConnectionResetError:
            return False
        self._unread += data
        return bool(data)

    def _cut(self, size: int) -> bytes:
        part = bytes(self._unread[:size])
        del self._unread[:size]
        return part


def post(path: str, content: Any, *headers: str) -> bytes:
    """The bytes of a POST; `content` is sent as JSON unless it is bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return _request("POST", path, f"Content-Length: {len(body)}", *headers) + body


def get(path: str, *headers: str) -> bytes:
    """The bytes of a GET."""
    return _request("GET", path, *headers)


def _request(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode()
