"""An answer that says more than its JSON: a media type of its own, and headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from timebound.types import Outcome

_BYTES, _TEXT, _JSON = "application/octet-stream", "text/plain; charset=utf-8", "application/json"
_MOST_HEADERS, _MOST_BYTES = 16, 2_048
"""Proxies commonly give all headers of an answer 4 KiB, and the server has some of its own."""
_NAME = re.compile(r"[a-z0-9!#$&'*+.^_`|~-]{1,64}")
_MEDIA = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[ -~]*)?", re.ASCII)
_VALUE = re.compile(r"[ -~]*")
_SERVERS = {
    "connection", "content-length", "content-type", "date", "keep-alive", "server", "server-timing", "te", "trailer",
    "transfer-encoding", "upgrade", "x-content-type-options", "x-request-id",
}  # fmt: skip
_SERVERS_BEGIN = ("access-control-", "proxy-", "timebound-")


class Reply:
    """What `finish` or `fallback` may return: bytes, a text, or anything JSON can say, with a media type and headers.

    Without `media` bytes are `application/octet-stream`, a text is `text/plain`, anything else JSON. Raises
    `ValueError` for headers that cannot be sent. The status is 200: errors are raised, not returned.
    """

    __slots__ = ("body", "headers", "media")

    def __init__(self, body: Any, media: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.body = body
        self.media = media or (_BYTES if _is_bytes(body) else _TEXT if isinstance(body, str) else _JSON)
        self.headers = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
        if not _MEDIA.fullmatch(self.media):
            raise ValueError(f'media is {self.media!r}; give a media type, such as "image/png"')
        for name, value in self.headers.items():
            _check(name, value)
        if len(self.headers) > _MOST_HEADERS or len(self.lines) > _MOST_BYTES:
            raise ValueError(f"a reply has at most {_MOST_HEADERS} headers of {_MOST_BYTES} bytes in all")

    @property
    def lines(self) -> str:
        """Its headers as they are sent, each line ended by CRLF."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())

    def outcome(self, encode: Callable[[Any], bytes]) -> Outcome:
        """As it goes to the gateway; `encode` makes JSON."""
        if _is_bytes(self.body):
            body = bytes(self.body)
        elif isinstance(self.body, str) and not self.media.startswith(_JSON):
            body = self.body.encode()
        else:
            body = encode(self.body)
        return Outcome(body, media=self.media, headers=self.lines)


def _is_bytes(body: Any) -> bool:
    return isinstance(body, bytes | bytearray | memoryview)


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    if name in _SERVERS or name.startswith(_SERVERS_BEGIN):
        cure = "; give it as media" if name == "content-type" else ""
        raise ValueError(f"the header {name!r} is set by the server{cure}")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"the header {name!r} must be printable ASCII in one line")
