"""From payloads to the bytes of requests, with placeholders filled in; each knows what its answer must be."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from timebound.errors import SetupError
from timebound.lab.load.attempts import Exchange
from timebound.lab.load.client import Reply

JSON = "application/json"
FRESH_KEY = ("Idempotency-Key", "{uuid}")
"""A header that makes each request a new one, where the body does not."""
_PLACE = re.compile(rb"\{(uuid|i|now)\}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class Payload:
    """What one request carries; `is_right` is the test of its answer, `has_places` whether placeholders count."""

    body: bytes
    content_type: str = JSON
    has_places: bool = False
    name: str = ""
    is_right: Callable[[Reply], bool] | None = None


Template = Sequence[bytes]
"""Text and names of places in turn: {uuid}, {i} (counts from 0) and {now} (seconds since 1970). Other braces stay."""


def fill(template: Template, values: Mapping[bytes, bytes]) -> bytes:
    """The text with its places filled."""
    return b"".join([values[part] if place % 2 else part for place, part in enumerate(template)])


@dataclass(frozen=True)
class Form:
    """What all requests of a run have in common."""

    host: str
    path: str
    method: str = "POST"
    headers: Sequence[tuple[str, str]] = ()


def read_header(text: str) -> tuple[str, str]:
    """Name and value of a header written as `Name: value`."""
    name, colon, value = text.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\r" in value:
        raise SetupError(f"{text!r} is no header; write it as 'Name: value'")
    return name, value.strip()


class Requests:
    """Gives the requests of a run, payload after payload, for ever."""

    def __init__(self, form: Form, payloads: Sequence[Payload], wall_clock: Callable[[], float] = time.time) -> None:
        if not payloads:
            raise SetupError("there is no payload to send")
        self._makers = [self._maker(form, payload) for payload in payloads]
        self._numbers = count()
        self._wall_clock = wall_clock
        # Never seeded: a uuid of an earlier run would be a repeat.
        self._random = random.Random()

    def take(self) -> Exchange:
        """The next request."""
        number = next(self._numbers)
        return self._makers[number % len(self._makers)](number)

    def _maker(self, form: Form, payload: Payload) -> Callable[[int], Exchange]:
        head = _PLACE.split(_head(form, payload))
        body = _PLACE.split(payload.body) if payload.has_places else [payload.body]
        has_body = bool(payload.body) or form.method not in ("GET", "DELETE", "HEAD")
        if len(head) == len(body) == 1:
            exchange = Exchange(_joined(head[0], body[0], has_body), payload.is_right)
            return lambda number: exchange
        return partial(self._fill, head, body, payload, has_body)

    def _fill(self, head: Template, body: Template, payload: Payload, has_body: bool, number: int) -> Exchange:
        values = {b"uuid": self._uuid(), b"i": b"%d" % number, b"now": b"%.3f" % self._wall_clock()}
        return Exchange(_joined(fill(head, values), fill(body, values), has_body), payload.is_right)

    def _uuid(self) -> bytes:
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}".encode()


def _head(form: Form, payload: Payload) -> bytes:
    """Request line and headers, up to Content-Length."""
    own = {name.lower() for name, _ in form.headers}
    lines = [f"{form.method} {form.path} HTTP/1.1"]
    if "host" not in own:
        lines.append(f"Host: {form.host}")
    if payload.body and "content-type" not in own:
        lines.append(f"Content-Type: {payload.content_type}")
    lines += [f"{name}: {value}" for name, value in form.headers if name.lower() != "content-length"]
    return "\r\n".join(lines).encode() + b"\r\n"


def _joined(head: bytes, body: bytes, has_body: bool) -> bytes:
    if not has_body:
        return head + b"\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
