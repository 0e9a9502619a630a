"""Who may do what only the operator may: with a token, or without one from this machine alone."""

from __future__ import annotations

from hmac import compare_digest
from ipaddress import ip_address

from starlette.requests import Request as HttpRequest

from timebound.errors import RequestError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Admin:
    """Checks a request for the operator's rights."""

    def __init__(self, token: str | None, *, needs_token: bool = False) -> None:
        self._token = token.encode() if token else None
        self._needs_token = needs_token

    def check(self, request: HttpRequest) -> None:
        """Raise `RequestError` unless this request comes from the operator."""
        if self._token is not None:
            if not self.has_token(request.headers.get("authorization", "").encode("latin-1")):
                raise RequestError("send the admin token as: Authorization: Bearer TOKEN", code="unauthorized")
        elif self._needs_token:
            # Keys mean that strangers can reach the server, perhaps through a proxy on this very machine.
            raise RequestError("with --keys the operator's calls need an --admin-token", code="forbidden")
        elif not _is_local(request):
            raise RequestError(
                "without --admin-token this is answered only on the server's own machine, asked for directly",
                code="forbidden",
            )

    def has_token(self, authorization: bytes) -> bool:
        """Whether this `Authorization` header carries the admin token."""
        given = bearer_token(authorization)
        return self._token is not None and given is not None and compare_digest(given, self._token)


def _is_local(request: HttpRequest) -> bool:
    """Whether the request came from this machine, through no proxy that shows and from no web page elsewhere."""
    try:
        address = ip_address(request.client.host if request.client is not None else "")
    except ValueError:
        return False
    # A socket for IPv6 and IPv4 shows 127.0.0.1 as ::ffff:127.0.0.1.
    is_loopback = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    is_direct = not any(header in request.headers for header in _FORWARDED)
    # Proxies that say nothing of themselves mostly still speak HTTP/1.0 to what is behind them.
    is_direct &= request.scope.get("http_version") != "1.0"
    return is_loopback and name in _LOCAL_NAMES and is_direct and _is_of_no_other_page(request, host)


def _is_of_no_other_page(request: HttpRequest, host: str) -> bool:
    # A page may have the browser POST anywhere; the browser says where such a request comes from.
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def bearer_token(value: bytes) -> bytes | None:
    """The token of an `Authorization` header; None if it is of another scheme."""
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
