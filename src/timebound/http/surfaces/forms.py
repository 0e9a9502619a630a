"""What else asks a model in our own protocol than its body as it is: a form, or a query string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.form import MULTIPART, URLENCODED, Field, is_form, read_form
from timebound.http.surfaces.base import Asked, Item, Read
from timebound.http.target import query_of
from timebound.reading import LIGHT, Errand
from timebound.reading.forms import Filled, FormReader, Told, facts_of
from timebound.store.fingerprint import has_tiny_numbers
from timebound.types import Body, ModelInfo

READER = "timebound.reading.forms"
MOST_QUERY, MOST_PAIRS = 8_192, 100
"""Bytes and pairs of a query string: what takes an event loop less than a millisecond."""
_LONGEST_MEDIA = 512
"""Bytes of a content-type; a form's boundary has 70 at most."""

_open = msgspec.msgpack.Decoder(Filled).decode


class Forms:
    """Forms and queries to one model."""

    def __init__(self, info: ModelInfo) -> None:
        facts = facts_of(info)
        self._reader = FormReader(facts)
        self._facts = msgspec.msgpack.encode(facts)
        self._is_raw = info.body is Body.RAW
        self._takes_query = "GET" in info.methods
        self._is_form_raw = any(media.startswith("multipart/") for media in info.accepts)
        self._is_by_content = info.cache == "content"

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes) -> Errand | None:
        """What the reader is to do, if this is a form that is not to be read on the event loop."""
        media = fields.get(b"content-type", b"")
        if len(body) <= LIGHT or len(media) > _LONGEST_MEDIA or not self._is_form(media):
            return None
        return Errand(READER, self._facts, msgspec.msgpack.encode(self._told(fields, media)))

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Any) -> Asked | None:
        """A request that is no JSON body as it is; None for a raw body."""
        media = fields.get(b"content-type", b"")
        if isinstance(looked, Read):
            return _asked(_open(looked.said), looked.hold)
        if not body:
            if self._takes_query:
                needs_print = self._told(fields, b"").needs_print
                return _asked(self._reader.fill(_pairs(query_of(fields)), needs_print=needs_print))
            raise RequestError("the body is empty", code="empty_body")
        if len(media) > _LONGEST_MEDIA:
            detail = f"the content-type has more than {_LONGEST_MEDIA} bytes"
            raise RequestError(detail, code="unsupported_media_type")
        if self._is_form(media):
            return _asked(self._reader.read(self._told(fields, media), body))
        if not self._is_raw:
            _check_media(media)
        return None

    def _is_form(self, media: bytes) -> bool:
        if not self._is_raw:
            return is_form(media)
        # curl says that any raw body is urlencoded.
        return media[: len(MULTIPART)].lower() == MULTIPART and not self._is_form_raw

    def _told(self, fields: Mapping[bytes, bytes], media: bytes) -> Told:
        return Told(media, self._is_by_content or b"idempotency-key" in fields)


def _asked(filled: Filled, hold: Any = None) -> Asked:
    return Asked((Item(filled.body, filled.key, filled.size, filled.fingerprint),), hold=hold)


def _pairs(query: bytes) -> list[Field]:
    if len(query) > MOST_QUERY or query.count(b"&") >= MOST_PAIRS:
        detail = f"the query has more than {MOST_QUERY} bytes or {MOST_PAIRS} fields; send a POST"
        raise RequestError(detail, code="bad_input")
    pairs = list(read_form(URLENCODED, query))
    if len(query) > LIGHT and any(has_tiny_numbers(pair.value) for pair in pairs):
        raise RequestError("the query has many numbers as small as 1e-100; send a POST", code="bad_input")
    return pairs


def _check_media(media: bytes) -> None:
    kind = media.split(b";")[0].strip().lower()
    if kind not in (b"application/json", b"text/json") and not kind.endswith(b"+json"):
        raise RequestError(
            f"content-type {kind.decode('latin-1')!r} is not taken here; send application/json or a form",
            code="unsupported_media_type",
        )


def check_encoding(encoding: bytes) -> None:
    """Raises `RequestError` for a body that is packed."""
    # Unpacking would cost the event loop, and with it everyone's deadlines, far more than the bytes that came.
    if encoding.strip().lower() not in (b"identity", b""):
        raise RequestError("compressed bodies are not taken; send this one as it is", code="unsupported_encoding")
