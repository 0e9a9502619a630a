"""A running server, as a verb of the command line asks it."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from timebound.errors import RequestError, SetupError


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
    """A server by its URL; raises `SetupError` if that is none."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float | None = None) -> None:
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

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """One answer, whatever its status; `body` is sent as JSON. Raises `RequestError` if nobody answers."""
        is_secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._port, timeout=self._timeout_s)
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
