"""A plain HTTP client for one server: a connection that stays open, and what the answer was made of."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit


class Answer(NamedTuple):
    """A reply: status, how it came about, how long it took, and its JSON."""

    status: int
    source: str
    quality: str
    seconds: float
    body: Any


class Server:
    """One connection to a server; not for several threads at once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise SystemExit(f"{url} is no address of a server; give one such as http://127.0.0.1:8000")
        self._url = url
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=10)

    def check(self) -> None:
        """End the program with one sentence if there is no server."""
        try:
            self._connection.connect()
        except OSError as error:
            cure = "start one: timebound serve examples/sentiment"
            raise SystemExit(f"no server answers at {self._url}: {error}; {cure}") from None

    def send(self, post: dict[str, Any]) -> Answer:
        """Ask for the feeling of a post."""
        return self._ask("POST", "/predictions/sentiment", json.dumps(post).encode())

    def read(self, key: str) -> Answer:
        """Read a kept result back by its key."""
        return self._ask("GET", f"/v1/results/sentiment/{quote(key, safe='')}", None)

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        headers = {"content-type": "application/json"} if body else {}
        start = time.perf_counter()
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        content = reply.read()
        seconds = time.perf_counter() - start
        source, quality = (reply.headers.get(f"timebound-{name}", "") for name in ("source", "quality"))
        is_json = reply.headers.get_content_type().endswith("json")
        return Answer(reply.status, source, quality, seconds, json.loads(content) if is_json else {})
