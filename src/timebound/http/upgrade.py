"""Requests that ask for another protocol are taken as the plain requests they are; none is spoken here but HTTP/1.1."""

from __future__ import annotations

from collections.abc import Iterable


def plain_head(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a request once more, without its wish to upgrade."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            lines.append(b"connection: " + b",".join(word for word in value.split(b",") if not _is_wish(word)))
        elif name != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def _is_wish(word: bytes) -> bool:
    return word.strip().lower() == b"upgrade"
