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

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token else None

    def check(self, request: HttpRequest) -> None:
        """Raise `RequestError` unless this request comes from the operator."""
        if self._token is not None:
            given = request.headers.get("authorization", "")
            if not compare_digest(given.encode("latin-1"), b"Bearer " + self._token):
                raise RequestError("send the admin token as: Authorization: Bearer TOKEN", code="unauthorized")
        elif not _is_local(request):
            raise RequestError(
                "without --admin-token this is answered only on the server's own machine, asked for directly",
                code="forbidden",
            )


def _is_local(request: HttpRequest) -> bool:
    """Whether the request came from this machine, through no proxy and from no web page under another name."""
    try:
        address = ip_address(request.client.host if request.client is not None else "")
    except ValueError:
        return False
    # A socket for IPv6 and IPv4 shows 127.0.0.1 as ::ffff:127.0.0.1.
    is_loopback = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback and name in _LOCAL_NAMES and not any(header in request.headers for header in _FORWARDED)
