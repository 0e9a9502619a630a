"""A running server, as a verb of the command line asks it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from timebound.errors import RequestError, SetupError
from timebound.operator_socket import find

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Of this machine."""
_PORTS = {"http": 80, "https": 443}


class Answer(msgspec.Struct, frozen=True):
    """What came back; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        """What a problem says of itself."""
        try:
            return str(msgspec.json.decode(self.body)["detail"])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            return f"the server answered {self.status}"


class Running:
    """A server by its URL, reached `at` another address if one is given; raises `SetupError` if that is no URL.

    Who shows nothing (`headers` is empty) and asks on this machine, asks by the operator's socket if there is one.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout_s: float | None = None, *, at: str | None = None
    ) -> None:
        try:
            self._parts = urlsplit(url)
            self._port = self._parts.port
        except ValueError:
            raise SetupError(f"--url {url} cannot be read; write http://host:8000") from None
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise SetupError(f"--url {url} is no address of a server; write http://host:8000")
        if not all(value.isprintable() for value in headers.values()):  # and it must not be shown in a traceback
            raise SetupError("the key or token holds a line break or the like; give it just as it was printed")
        self.url = url
        self._headers = {"Content-Type": b"application/json"} | {
            name: value.encode() for name, value in headers.items()
        }
        self._timeout_s = timeout_s
        self._at = at
        is_here = (at or self._parts.hostname) in LOCAL_NAMES and not headers
        self._socket = find(self._port or _PORTS[self._parts.scheme]) if is_here else None

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """One answer, whatever its status; `body` is sent as JSON. Raises `RequestError` if nobody answers."""
        connection = self._connection()
        data = None if body is None else msgspec.json.encode(body)
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, data, self._headers)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read())
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RequestError(f"no server answers at {self.url}: {reason}; give its address with --url") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._socket is not None:
            return _BySocket(self._socket, self._timeout_s)
        is_secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._port, timeout=self._timeout_s)
        if self._at is not None:
            there = (self._at, connection.port)
            connection._create_connection = lambda address, *rest: socket.create_connection(there, *rest)  # type: ignore[attr-defined]
        return connection


class _BySocket(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, file: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._file = file

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._file))
