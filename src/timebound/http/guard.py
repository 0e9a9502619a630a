"""The door of the server's own routes where API keys are configured; models' routes look for themselves."""

from __future__ import annotations

from starlette.types import Scope

from timebound.admission import Client
from timebound.clock import Clock
from timebound.http.access import Access, no_key
from timebound.http.admin import Admin


class Guard:
    """Lets in who has a key, to what needs one."""

    def __init__(self, access: Access, admin: Admin, clock: Clock) -> None:
        self._access = access
        self._admin = admin
        self._clock = clock

    def client(self, scope: Scope) -> Client:
        """The holder of this request's key; raises `RequestError` if there is none."""
        client = self._access.find(scope["headers"])
        if client is None:
            raise no_key()
        return client

    def let_in(self, scope: Scope) -> Client | None:
        """Count a call of one of the server's own routes; None if it needs no key. Raises `RequestError`."""
        path = scope["path"]
        if self._access.is_open(path):
            return None
        if self._access.is_operators(path) or self._admin.has_token(dict(scope["headers"]).get(b"authorization", b"")):
            client = self._access.find(scope["headers"])
        else:
            client = self.client(scope)
        if client is not None:
            client.count(self._clock.now())
        return client
