"""Where API keys are configured: whose key a request carries, what needs a key, and who sees what."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import Scope

from timebound.admission import Client, Keys
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.http.admin import Admin, bearer_token

_OPEN = ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/ping", "/", "/docs", "/live", "/history")
"""Probes carry no keys, and the pages hold nothing but themselves: what they show they ask for with a key."""
_OPEN_FOLDER = "/ui/"
_OPERATORS = ("/models", "/v1/results", "/v1/live", "/v1/history", "/v1/reload", "/v2/repository/models/")
"""Calls that the operator makes without an API key: their handlers ask whether it is the operator."""
_OF_PASSES = ("/v1/feedback/", "/v1/models")
"""What clients ask with their keys, and the operator's pages with a pass."""


CLIENT = "timebound.client"
"""Where the app puts the holder of the API key in a request's scope."""

_LABEL = re.compile(rb'[{,](model|client)="((?:[^"\\]|\\.)*)"')


class Access:
    """Finds the holder of the key that a request carries; the door of the server's own routes.

    Models' routes look for themselves.
    """

    def __init__(self, keys: Keys, admin: Admin, clock: Clock, *, has_open_metrics: bool = False) -> None:
        self._keys = keys
        self._admin = admin
        self._clock = clock
        self._open = {*_OPEN, "/metrics"} if has_open_metrics else set(_OPEN)

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> Client | None:
        """Whose key comes as `X-API-Key`, or else as `Authorization: Bearer`; None without a key that is known."""
        bearer = None
        for name, value in headers:
            if name == b"x-api-key":
                return self._keys.find(value.strip())
            if name == b"authorization":
                bearer = value
        token = None if bearer is None else bearer_token(bearer)
        return None if token is None else self._keys.find(token)

    def client(self, scope: Scope) -> Client:
        """The holder of this request's key; raises `RequestError` if there is none."""
        client = self.find(scope["headers"])
        if client is None:
            raise no_key()
        return client

    def let_in(self, scope: Scope) -> Client | None:
        """Count a call of one of the server's own routes; None if it needs no key. Raises `RequestError`."""
        path = scope["path"]
        if (path.rstrip("/") or "/") in self._open or path.startswith(_OPEN_FOLDER):
            return None
        is_looking = path.startswith(_OF_PASSES) and self._admin.has_pass(scope)
        is_operators = path.startswith(_OPERATORS) and not path.endswith("/invoke")
        if is_looking or is_operators or self._admin.is_operators(scope):
            client = self.find(scope["headers"])
        else:
            client = self.client(scope)
        if client is not None:
            client.count(self._clock.now())
        return client

    def shows(self, scope: Scope, model: str) -> bool:
        """Whether who asks may know of this model: the operator of all, a client of those its key is for."""
        client: Client | None = scope.get(CLIENT)
        is_whole = self.is_operators(scope) or self._admin.has_pass(scope)
        return is_whole if client is None else client.may_ask(model)

    def is_operators(self, scope: Scope) -> bool:
        """Whether the operator asks."""
        return self._admin.is_operators(scope)


def metrics_for(client: Client, text: bytes) -> bytes:
    """What a client sees of the metrics: nothing of other clients, nor of models that its key is not for."""
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if line.startswith(b"#") or _is_shown(client, line))


def _is_shown(client: Client, line: bytes) -> bool:
    for label, value in _LABEL.findall(line):
        name = value.decode()
        if name != client.name if label == b"client" else not client.may_ask(name.partition("@")[0]):
            return False
    return True


def no_key() -> RequestError:
    """What a request without a known key is told; not which of the two it was."""
    return RequestError(
        "send an API key of this server as: X-API-Key: KEY, or Authorization: Bearer KEY", code="unauthorized"
    )
