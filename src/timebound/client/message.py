"""HTTP/1.1 as bytes, without a connection: a request's head, and a reader that makes a reply of what comes in."""

from __future__ import annotations

from collections.abc import Iterable

import httptools
import msgspec

from timebound.errors import BadInput

HEAD_SIZE = "inference-header-content-length"
"""How much of a body is JSON, where tensors follow it in binary."""


class Reply(msgspec.Struct, frozen=True):
    """An answer as it came; names of headers are in lower case, the last of several counts."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotHttp(Exception):
    """What came in is no HTTP answer, or ends too early."""


def header(name: str, value: str) -> bytes:
    """One line of a head; raises `BadInput` for a value that would be more than one."""
    if not value.isprintable():
        raise BadInput(f"{name} holds a line break or another character that no header can carry")
    return f"{name}: {value}\r\n".encode()


def head(method: str, target: str, lines: Iterable[bytes], length: int | None) -> bytes:
    """A request up to its body; `lines` come from `header`."""
    size = b"" if length is None else b"content-length: %d\r\n" % length
    return b"".join([f"{method} {target} HTTP/1.1\r\n".encode("ascii"), *lines, size, b"\r\n"])


class Reader:
    """Reads one reply. Feed it what arrives until it gives one; after that `stays` says whether to keep the line."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._has_head = False
        self._reply: Reply | None = None
        self.has_begun = False
        """Whether any byte of an answer was seen."""
        self.stays = False

    def feed(self, data: bytes) -> Reply | None:
        """The reply, once it is whole; raises `NotHttp`."""
        self.has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NotHttp(f"what came is no HTTP answer ({error})") from None
        return self._reply

    def end(self) -> Reply:
        """The reply that the end of the connection completes; raises `NotHttp` if something is missing."""
        if self._has_head and not {"content-length", "transfer-encoding"} & self._headers.keys():
            return self._whole()
        raise NotHttp("the connection was closed before the answer" + (" was whole" if self.has_begun else ""))

    # ------------------------------------------------------------------ for the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # "100 Continue": the answer is still to come
            self._headers, self._has_head = {}, False
            return
        self.stays = self._reply is None and self._parser.should_keep_alive()
        self._reply = self._reply or self._whole()

    def _whole(self) -> Reply:
        return Reply(self._parser.get_status_code(), self._headers, b"".join(self._parts))
