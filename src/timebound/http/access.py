"""Who is asking, where API keys are configured: a key in the headers becomes a `Client`; and what needs a key."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from timebound.admission import Client, Keys
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.http.admin import Admin, bearer_token

_OPEN = ("/livez", "/readyz", "/", "/docs")
"""Probes carry no keys, and the pages hold nothing but themselves: what they show they ask for with a key."""
_OPEN_FOLDER = "/ui/"
_OPERATORS = ("/v1/results", "/v1/reload")
"""Calls that the operator makes without an API key: their handlers ask for the admin token instead."""


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
        if path in self._open or path.startswith(_OPEN_FOLDER):
            return None
        given = dict(scope["headers"]).get(b"authorization", b"")
        if path.startswith(_OPERATORS) or self._admin.has_token(given):
            client = self.find(scope["headers"])
        else:
            client = self.client(scope)
        if client is not None:
            client.count(self._clock.now())
        return client


def no_key() -> RequestError:
    """What a request without a known key is told; not which of the two it was."""
    return RequestError(
        "send an API key of this server as: X-API-Key: KEY, or Authorization: Bearer KEY", code="unauthorized"
    )
