"""What the target of a request says besides which model it asks: the rest of its path, and its query.

A surface sees headers and a body. Where the target says more, it goes with the headers, under a name that no client can
send: header names have no colon.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import httptools

TARGET = b":path"


def path_of(url: bytes) -> bytes:
    """The path of a request's target, which may be a whole address and have a query string or escapes."""
    path: bytes = httptools.parse_url(url).path or b""
    return unquote_to_bytes(path) if b"%" in path else path


def query_of(fields: Mapping[bytes, bytes]) -> bytes:
    """The query string; empty if there is none."""
    if TARGET not in fields:
        return b""
    query: bytes | None = httptools.parse_url(fields[TARGET]).query
    return query or b""


def rest_of(fields: Mapping[bytes, bytes]) -> str:
    """What follows `/predictions/NAME/VERSION/`."""
    if TARGET not in fields:
        return ""
    parts = path_of(fields[TARGET]).split(b"/", 4)
    return parts[4].decode("utf-8", "replace") if len(parts) > 4 else ""
