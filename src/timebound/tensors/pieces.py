"""Bytes of large answers as JSON, piece by piece: an event loop does other things between two of them.

Ten megabytes take some milliseconds as base64, and a tenth of a second as a text in which all is escaped.
"""

from __future__ import annotations

from binascii import b2a_base64
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

import msgspec

Made = TypeVar("Made")

Steps: TypeAlias = Generator[None, None, Made]
"""Work that can be interrupted wherever it yields; what it returns is made then."""

PIECE = 65_536
"""Bytes that are a text after half a millisecond, whatever is in them."""
_PIECE_AS_64 = 3 * PIECE

_LENGTH_BYTES = 4
"""Before each element of BYTES."""

_encode = msgspec.json.Encoder().encode
_as_text = getincrementaldecoder("utf-8")


def at_once(steps: Steps[Made]) -> Made:
    """What steps make, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Made = end.value
            return made


def as_text(body: bytes) -> Steps[bytes | None]:
    """Bytes as a JSON text; None if they are none in UTF-8."""
    decoder = _as_text()
    pieces = [b'"']
    for at in range(0, len(body), PIECE):
        try:
            text = decoder.decode(body[at : at + PIECE], at + PIECE >= len(body))
        except UnicodeDecodeError:
            return None
        pieces.append(_encode(text)[1:-1])
        if at + PIECE < len(body):
            yield
    pieces.append(b'"')
    return b"".join(pieces)


def as_base64(body: bytes) -> Steps[bytes]:
    """Bytes in base64, as a JSON text."""
    pieces = [b'"']
    for at in range(0, len(body), _PIECE_AS_64):
        pieces.append(b2a_base64(body[at : at + _PIECE_AS_64], newline=False))
        if at + _PIECE_AS_64 < len(body):
            yield
    pieces.append(b'"')
    return b"".join(pieces)


def is_wasteful(size: int, elements: Iterable[str | bytes]) -> bool:
    """Whether so many bytes of JSON are many, and over twice what the elements take as BYTES: these are no texts."""
    if size <= PIECE:
        return False
    each = (one.encode("utf-8", "replace") if isinstance(one, str) else one for one in elements)
    return size > 2 * sum(_LENGTH_BYTES + len(one) for one in each)
