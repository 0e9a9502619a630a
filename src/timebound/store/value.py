"""A result as bytes that any later version can read.

    byte 0        version of this layout, 1
    byte 1        'f' full or 'p' partial
    bytes 2-17    fingerprint of the request's body
    the rest      MessagePack map: media, members, of_members, batch_size, at, body, version

What a store must compare without decoding comes first; the rest says itself what it is.
"""

from __future__ import annotations

import msgspec

from timebound.store.base import Stored
from timebound.types import Outcome, Quality, Result, Source

VERSION = 1
FINGERPRINT_BYTES = 16
_HEAD = 2 + FINGERPRINT_BYTES
_QUALITIES = {Quality.FULL: b"f", Quality.PARTIAL: b"p"}
_FROM_BYTE = {ord(letter): quality for quality, letter in _QUALITIES.items()}


class _Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    media: str
    members: int
    of_members: int
    batch_size: int
    at: float
    body: bytes
    version: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Rest)


class UnknownLayout(ValueError):
    """Bytes that this version cannot read; a later one may have written them."""


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
    )
    return b"".join((bytes((VERSION,)), _QUALITIES[result.quality], stored.fingerprint, _encoder.encode(rest)))


def decode(value: bytes) -> Stored:
    """The result in these bytes; raises `UnknownLayout`."""
    if len(value) <= _HEAD or value[0] != VERSION or value[1] not in _FROM_BYTE:
        raise UnknownLayout(f"no stored result of layout {VERSION}")
    try:
        rest = _decoder.decode(memoryview(value)[_HEAD:])
    except msgspec.DecodeError as error:
        raise UnknownLayout(str(error)) from None
    result = Result(
        Outcome(rest.body, media=rest.media),
        _FROM_BYTE[value[1]],
        Source.STORED,
        rest.members,
        rest.of_members,
        rest.batch_size,
        version=rest.version,
    )
    return Stored(bytes(value[2:_HEAD]), result, rest.at)
