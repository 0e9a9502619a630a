"""A result as bytes that any later version can read.

    byte 0        version of this layout, 1
    byte 1        'f' full or 'p' partial
    bytes 2-17    fingerprint of the request's body
    the rest      MessagePack map: media, members, of_members, batch_size, at, body, version

What a store must compare without decoding comes first; the rest says itself what it is.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from timebound.store.base import Stored
from timebound.types import Outcome, Quality, Result, Source

VERSION = 1
_LAST_VERSION = 31
"""There will hardly be more; what begins with another byte, such as any text, is no result."""
LONGEST = 1_000_000
"""Bytes. Larger results are not kept: one of them would hold up everybody's claims."""
FINGERPRINT_BYTES = 16
_HEAD = 2 + FINGERPRINT_BYTES
_QUALITIES = {Quality.FULL: b"f", Quality.PARTIAL: b"p"}
_FROM_BYTE = {ord(letter): quality for quality, letter in _QUALITIES.items()}


_Head: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[ -~]*\Z")]
"""A text that goes into a head of HTTP, where a line break would begin another head."""
_Lines: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([!-9;-~]+: [ -~]*\r\n)*\Z")]
"""Header lines of an answer, each ended by CRLF."""
_Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=2.5e11)]
"""Seconds since 1970, until the last year that a date can say."""


class _Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    media: _Head
    members: int
    of_members: int
    batch_size: int
    at: _Moment
    body: bytes
    version: _Head = ""
    headers: _Lines = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Rest)


class UnknownLayout(ValueError):
    """Bytes that this version cannot read; a later one has written them."""


class Unreadable(UnknownLayout):
    """Bytes that no version has written, or that were damaged since: as if nothing were there."""


def encode(stored: Stored) -> bytes:
    """The bytes of a full or partial result."""
    result = stored.result
    rest = _Rest(
        result.outcome.media,
        result.members,
        result.of_members,
        result.batch_size,
        stored.at,
        result.outcome.body,
        result.version,
        result.outcome.headers,
    )
    return b"".join((bytes((VERSION,)), _QUALITIES[result.quality], stored.fingerprint, _encoder.encode(rest)))


def decode(value: bytes) -> Stored:
    """The result in these bytes; raises `UnknownLayout`, or `Unreadable` if they are nobody's."""
    if value and VERSION < value[0] <= _LAST_VERSION:
        raise UnknownLayout(f"no stored result of layout {VERSION}")
    if len(value) <= _HEAD or value[0] != VERSION or value[1] not in _FROM_BYTE:
        raise Unreadable("no stored result")
    try:
        rest = _decoder.decode(memoryview(value)[_HEAD:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    result = Result(
        Outcome(rest.body, media=rest.media, headers=rest.headers),
        _FROM_BYTE[value[1]],
        Source.STORED,
        rest.members,
        rest.of_members,
        rest.batch_size,
        version=rest.version,
    )
    return Stored(bytes(value[2:_HEAD]), result, rest.at)
