"""Who is asking, where API keys are configured: a key in the headers becomes a `Client`."""

from __future__ import annotations

from collections.abc import Iterable

from timebound.admission import Client, Keys
from timebound.errors import RequestError

_OPEN = ("/livez", "/readyz", "/", "/docs")
"""Probes carry no keys, and the pages hold nothing but themselves: what they show they ask for with a key."""
_OPEN_FOLDER = "/ui/"
_OPERATORS = ("/v1/results", "/v1/reload")
"""Calls that the operator makes without an API key: their handlers ask for the admin token instead."""


class Access:
    """Finds the holder of the key that a request carries, and knows what needs none."""

    def __init__(self, keys: Keys, *, has_open_metrics: bool = False) -> None:
        self._keys = keys
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

    def is_open(self, path: str) -> bool:
        """Whether this is answered without a key."""
        return path in self._open or path.startswith(_OPEN_FOLDER)

    def is_operators(self, path: str) -> bool:
        """Whether the admin token may take the place of a key here."""
        return path.startswith(_OPERATORS)


def bearer_token(value: bytes) -> bytes | None:
    """The token of an `Authorization` header; None if it is of another scheme."""
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def no_key() -> RequestError:
    """What a request without a known key is told; not which of the two it was."""
    return RequestError(
        "send an API key of this server as: X-API-Key: KEY, or Authorization: Bearer KEY", code="unauthorized"
    )
