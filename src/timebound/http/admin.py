"""Who may do what only the operator may: who has the token, or else asks by the operator's socket."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hmac import compare_digest

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from timebound.errors import RequestError

BY_SOCKET = "timebound.by_socket"
"""In a request's scope: it came by the operator's socket."""

_FORWARDED = (
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-server",
    b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip", b"x-envoy-external-address",
)  # fmt: skip
_MOST_PASSES = 64
_LOCAL_NAMES = (b"localhost", b"127.0.0.1", b"[::1]")


class Passes:
    """Words that let a browser look at the operator's pages, and do nothing else; they hold until the server stops."""

    def __init__(self) -> None:
        self._known: list[bytes] = []

    def issue(self) -> str:
        """A new one; of many the oldest is forgotten."""
        made = secrets.token_urlsafe(24)
        self._known = [*self._known, made.encode()][-_MOST_PASSES:]
        return made

    def knows(self, given: bytes) -> bool:
        """Whether it is one of them."""
        return any(compare_digest(given, known) for known in self._known)


class Admin:
    """Checks a request for the operator's rights. No address proves them: a proxy on this machine has a local one."""

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token else None
        self.passes = Passes()

    def check(self, request: HttpRequest) -> None:
        """Raise `RequestError` unless this request comes from the operator."""
        if self.is_operators(request.scope):
            return
        headers = dict(request.scope["headers"])
        given = bearer_token(headers.get(b"authorization", b""))
        if self._token is not None:
            wrong = "the token that was sent is not this server's admin token; " if given else ""
            raise RequestError(wrong + "send the admin token as: Authorization: Bearer TOKEN", code="unauthorized")
        if BY_SOCKET in request.scope:
            detail = "the operator's socket takes no forwarded requests, and none of another host or web page"
            raise RequestError(detail, code="forbidden")
        raise RequestError(_why_not(headers, has_given=bool(given)), code="forbidden")

    def check_pass(self, request: HttpRequest) -> None:
        """The same for what only shows something: a pass that the operator was given will do."""
        if self.has_pass(request.scope):
            return
        try:
            self.check(request)
        except RequestError as error:
            if self._token is None and self.pass_of(request.scope):
                error.detail = (
                    "the server knows no such pass, and has no admin token; a pass holds until the server stops"
                )
            error.detail += "; for a browser: `timebound live` on the server's machine gives an address to open"
            raise

    def has_pass(self, scope: Scope) -> bool:
        """Whether this request carries a pass that the operator was given."""
        return self.passes.knows(self.pass_of(scope))

    def pass_of(self, scope: Scope) -> bytes:
        """What it carries where a pass would be; empty if nothing."""
        return bearer_token(dict(scope["headers"]).get(b"authorization", b"")) or b""

    def is_operators(self, scope: Scope) -> bool:
        """Whether this request comes from the operator."""
        headers = dict(scope["headers"])
        if self.has_token(headers.get(b"authorization", b"")):
            return True
        return BY_SOCKET in scope and _is_direct(headers)

    def has_token(self, authorization: bytes) -> bool:
        """Whether this `Authorization` header carries the admin token."""
        given = bearer_token(authorization)
        return self._token is not None and given is not None and compare_digest(given, self._token)


def by_socket(app: ASGIApp) -> ASGIApp:
    """The same app for those who come by the operator's socket."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        scope[BY_SOCKET] = True
        await app(scope, receive, send)

    return marked


def _is_direct(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request came through no proxy that shows, and from no web page.

    Nobody else opens the socket; but a proxy of the same user might be pointed at it.
    """
    host = headers.get(b"host", b"")
    name = host if host.endswith(b"]") else host.rpartition(b":")[0] or host
    is_pages = b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none"
    return name in _LOCAL_NAMES and not is_pages and not any(header in headers for header in _FORWARDED)


def _why_not(headers: Mapping[bytes, bytes], *, has_given: bool) -> str:
    """The cause and the cure where a server has no admin token."""
    if has_given:
        return (
            "a token was sent, but this server has no admin token: leave yours out on the server's machine, as the "
            "user who runs it, or start the server with --admin-token"
        )
    if any(header in headers for header in _FORWARDED):
        return (
            "this is the operator's, and came through a proxy: ask the servers themselves, at their own ports on their "
            "machine (those of `timebound up` have the ports after its own; kill -HUP of it reloads them all), or "
            "start them with --admin-token"
        )
    return (
        "this is the operator's: use the timebound command on the server's machine as the user who runs it, or set "
        "--admin-token"
    )


def bearer_token(value: bytes) -> bytes | None:
    """The token of an `Authorization` header; None if it is of another scheme."""
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
