"""Who calls by gRPC: whose API key it is or whether it is the operator, from where, and by when an answer is wanted."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from timebound.admission import Client, Keys
from timebound.clock import Clock
from timebound.errors import DeadlineMissed, RequestError
from timebound.http.access import Access, no_key
from timebound.http.admin import Admin
from timebound.http.around import TRACED
from timebound.http.headers import LIMITS, WISHES

_KEYS = frozenset(("x-api-key", "authorization"))
_KNOWN = frozenset(name.decode() for name in (*LIMITS, *WISHES, *TRACED, b"x-request-id")) - {"grpc-timeout"}
_ROUNDED, _LEAST_S = 0.01, 0.001
"""Clients write a deadline with two or three digits, rounded up, and hold to their own: so much may be too much."""


class Caller:
    """One call's."""

    __slots__ = ("_context", "address", "client", "headers", "is_operators")

    def __init__(
        self, context: Any, client: Client | None, headers: list[tuple[bytes, bytes]], *, is_operators: bool
    ) -> None:
        self._context = context
        self.client = client
        """The holder of the API key; None for the operator, and where there are no keys."""
        self.headers = headers
        """What of its metadata says how it wants to be answered."""
        self.is_operators = is_operators
        self.address = address_of(context.peer())

    def left_s(self) -> float | None:
        """Seconds until the call's deadline, if it has one; raises `DeadlineMissed` if it is over."""
        left: float | None = self._context.time_remaining()
        if left is None:
            return None
        left = left - max(_LEAST_S, left * _ROUNDED)
        if left <= 0:
            raise DeadlineMissed("the deadline came before the request was read")
        return left


class Callers:
    """Tells callers apart, as they are told apart over HTTP."""

    def __init__(self, keys: Keys | None, admin_token: str | None, clock: Clock) -> None:
        self._admin = Admin(admin_token)
        self._has_token = admin_token is not None
        self._access = Access(keys, self._admin, clock) if keys is not None else None
        self._clock = clock

    def of(self, context: Any) -> Caller:
        """Who calls; raises `RequestError` if an API key is needed and there is none that is known."""
        shown: list[tuple[bytes, bytes]] = []
        headers: list[tuple[bytes, bytes]] = []
        for name, value in context.invocation_metadata() or ():
            if name in _KEYS:
                shown.append((name.encode(), _bytes(value)))
            elif name in _KNOWN:
                headers.append((name.encode(), _bytes(value)))
        is_operators = any(name == b"authorization" and self._admin.has_token(value) for name, value in shown)
        client = None
        if self._access is not None:
            client = self._access.find(shown)
            if client is None and not is_operators:
                raise no_key()
        return Caller(context, client, headers, is_operators=is_operators)

    def count(self, caller: Caller) -> None:
        """Count a call that is no request to a model; raises `RequestError` if it is one too many."""
        if caller.client is not None:
            caller.client.count(self._clock.now())

    @property
    def has_keys(self) -> bool:
        """Whether callers need an API key."""
        return self._access is not None

    def check_operator(self, caller: Caller) -> None:
        """Raise `RequestError` unless the operator calls."""
        if caller.is_operators:
            return
        if self._has_token:
            raise RequestError("send the admin token as metadata: authorization: Bearer TOKEN", code="unauthorized")
        raise RequestError(
            "this is the operator's: use the timebound command on the server's machine as the user who runs it, or "
            "set --admin-token and send it as metadata: authorization: Bearer TOKEN",
            code="forbidden",
        )


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


@lru_cache(4096)
def address_of(peer: str) -> str:
    """The address in what gRPC calls a peer: ipv4:127.0.0.1:50123, ipv6:%5B::1%5D:50123 or unix:PATH."""
    kind, _, rest = peer.partition(":")
    if kind == "ipv4":
        return rest.rpartition(":")[0]
    return unquote(rest).rpartition(":")[0].strip("[]") if kind == "ipv6" else ""
