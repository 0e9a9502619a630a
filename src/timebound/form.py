"""Reads forms: `multipart/form-data` (RFC 7578) and `application/x-www-form-urlencoded`, a whole body to its fields.

    for field in read_form(b"multipart/form-data; boundary=...", body):
        field.name, field.filename, field.media, field.value

Everything is bounded, nothing is copied but the values, and the search for the next part is one pass in C: ten
megabytes take some milliseconds whatever is in them. That is too long for an event loop, so read small bodies there
(`is_light`) and others in a worker or a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import msgspec

from timebound.errors import RequestError

MULTIPART, URLENCODED = b"multipart/form-data", b"application/x-www-form-urlencoded"
MOST_FIELDS = 1_000
_MOST_HEAD = 8_192
"""Bytes of the header lines of one part."""
_MOST_BOUNDARY = 70
"""Characters, by RFC 2046."""

# A quoted value may hold escaped quotes; browsers write a quote as %22.
_PARAMETER = re.compile(rb';\s*([\w!#$&+.^`|~*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s"]+))')
_ESCAPED = re.compile(rb"\\(.)")


class Field(msgspec.Struct, frozen=True):
    """One field of a form. `filename` is None for what is no file, `media` is empty if the client said none."""

    name: str
    value: bytes
    filename: str | None = None
    media: str = ""


def is_form(media: bytes) -> bool:
    """Whether a body of this content type is a form."""
    return media.partition(b";")[0].strip().lower() in (MULTIPART, URLENCODED)


def read_form(media: bytes, body: bytes) -> Iterator[Field]:
    """The fields in order; raises `RequestError` that says what is wrong with the form."""
    kind = media.partition(b";")[0].strip().lower()
    if kind == URLENCODED:
        return _read_pairs(body)
    if kind == MULTIPART:
        return _read_parts(_boundary(media), body)
    raise _wrong(f"content-type {kind.decode('latin-1')!r} is no form")


# ---------------------------------------------------------------------- names and values


def _read_pairs(body: bytes) -> Iterator[Field]:
    if body.count(b"&") >= MOST_FIELDS:
        raise _too_many()
    for pair in body.split(b"&"):
        name, equals, value = pair.partition(b"=")
        if equals:
            yield Field(_text(_unquoted(name)), _unquoted(value))


def _unquoted(text: bytes) -> bytes:
    text = text.replace(b"+", b" ")
    return unquote_to_bytes(text) if b"%" in text else text


# ---------------------------------------------------------------------- parts


def _boundary(media: bytes) -> bytes:
    boundary = _parameters(media).get(b"boundary", b"")
    if not boundary or len(boundary) > _MOST_BOUNDARY:
        raise _wrong(f"the content type of a form needs a boundary of 1 to {_MOST_BOUNDARY} characters")
    return boundary


def _read_parts(boundary: bytes, body: bytes) -> Iterator[Field]:
    first, between = b"--" + boundary, b"\r\n--" + boundary
    start = 0 if body.startswith(first) else body.find(between) + 2
    if start == 1:
        raise _wrong("the form does not contain the boundary of its content type")
    at, count = start + len(first), 0
    while not body.startswith(b"--", at):
        head_start = body.find(b"\r\n", at, at + 64) + 2  # after a boundary there may be blanks
        if head_start == 1 or body[at : head_start - 2].strip(b" \t"):
            raise _wrong("a boundary is followed by something else than a new line")
        count += 1
        if count > MOST_FIELDS:
            raise _too_many()
        # A part without header lines begins with the empty line.
        head_end = body.find(b"\r\n\r\n", head_start - 2, head_start + _MOST_HEAD)
        if head_end < 0:
            raise _wrong(f"the header lines of part {count} do not end within {_MOST_HEAD} bytes")
        end = body.find(between, head_end + 2)
        if end < 0:
            raise _wrong(f"part {count} does not end: the form is cut off")
        yield _field(count, body[head_start:head_end], body[head_end + 4 : end])
        at = end + len(between)


def _field(number: int, head: bytes, value: bytes) -> Field:
    name = filename = None
    media = ""
    for line in head.split(b"\r\n"):
        key, _, told = line.partition(b":")
        match key.strip().lower():
            case b"content-disposition":
                said = _parameters(told)
                name, filename = said.get(b"name"), said.get(b"filename", said.get(b"filename*"))
            case b"content-type":
                media = told.strip().decode("latin-1")
            case b"content-transfer-encoding" if told.strip().lower() not in (b"binary", b"8bit", b"7bit"):
                raise _wrong(f"part {number} has a transfer encoding, which forms do not have any more (RFC 7578)")
    if name is None:
        raise _wrong(f"part {number} has no name; send: Content-Disposition: form-data; name=...")
    return Field(_text(name), value, None if filename is None else _text(filename), media)


def _parameters(text: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, quoted, plain in _PARAMETER.findall(text):
        found.setdefault(name.lower(), _ESCAPED.sub(rb"\1", quoted) if quoted else plain)
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _wrong(detail: str) -> RequestError:
    return RequestError(f"the form cannot be read: {detail}", code="bad_input")


def _too_many() -> RequestError:
    return _wrong(f"it has more than {MOST_FIELDS} fields")
