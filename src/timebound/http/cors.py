"""Which web pages of other origins may read answers; none unless the operator says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from timebound.http.flow import Respond

_METHODS = b"GET, POST, DELETE"
_ASKED = b"access-control-request-headers"
_EXPOSED = (
    b"retry-after, server-timing, timebound-batch, timebound-members, timebound-quality, timebound-source, "
    b"timebound-votes, x-request-id"
)

Lines = list[tuple[bytes, bytes]]


class Cors:
    """Adds the headers by which a browser lets pages of these origins read what the server says."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {origin.rstrip("/").encode() for origin in origins}
        self._is_any = b"*" in self._origins

    def lines(self, headers: Iterable[tuple[bytes, bytes]]) -> Lines:
        """What to add to an answer for the page that asks, if it is one of ours. Cookies are never let through."""
        origin = dict(headers).get(b"origin")
        vary = [] if self._is_any else [(b"vary", b"origin")]
        if origin is None or not (self._is_any or origin in self._origins):
            return vary
        allowed = b"*" if self._is_any else origin
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED), *vary]

    def adding(self, respond: Respond, headers: Iterable[tuple[bytes, bytes]]) -> Respond:
        """The same `respond`, with these lines in every head."""
        lines = as_head(self.lines(headers))
        return lambda status, head, body: respond(status, head + lines, body)

    def preflight(self, headers: Iterable[tuple[bytes, bytes]]) -> Lines | None:
        """The answer to a browser that asks before it sends; None if this is no such question."""
        fields = dict(headers)
        if b"origin" not in fields or b"access-control-request-method" not in fields:
            return None
        lines = self.lines(headers)
        if any(name == b"access-control-allow-origin" for name, _ in lines):
            asked = fields.get(_ASKED, b"")
            lines += [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"600")]
            lines += [(b"access-control-allow-headers", asked)] if asked else []
        return lines


def as_head(lines: Lines) -> bytes:
    """Header lines, each ended by CRLF."""
    return b"".join(b"%b: %b\r\n" % line for line in lines)
