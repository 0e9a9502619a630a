"""The bytes of protobuf messages where looking at all of them, or copying them once more, would take too long.

Large data is found and written here without a look inside; what is around it, protobuf reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from timebound.errors import RequestError
from timebound.tensors.item import Data

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 600
"""On the first level of a message: each takes a microsecond to pass over."""
LIGHT = 16_384
"""Bytes of a packed message, unpacked, that are unpacked at once."""
_PEEKED = 4_096
_WINDOWS = {"gzip": 31, "deflate": 15}


def spans(data: Data) -> Iterator[tuple[int, int, int, int]]:
    """The fields on the first level: number, where its tag begins, where its value begins and ends.

    Raises `RequestError` if there are too many, or if this is no message.
    """
    at, size, seen = 0, len(data), 0
    try:
        while at < size:
            seen += 1
            if seen > MOST_FIELDS:
                raise RequestError(f"the message has more than {MOST_FIELDS} fields", code="bad_input")
            tag = at
            key = data[at]
            at += 1
            if key > 0x7F:
                key, at = _varint(data, at - 1)
            kind = key & 7
            if kind == LENGTH:
                start = at + 1
                length = data[at]
                if length > 0x7F:
                    length, start = _varint(data, at)
                at = start + length
            elif kind == VARINT:
                start = at
                _, at = _varint(data, at)
            elif kind in (FIXED64, FIXED32):
                start, at = at, at + (8 if kind == FIXED64 else 4)
            else:
                raise IndexError
            if at > size:
                raise IndexError
            yield key >> 3, tag, start, at
    except IndexError:
        raise RequestError("the message is cut short, or is none of this kind", code="bad_input") from None


def _varint(data: Data, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


def varint(number: int) -> bytes:
    """A whole number of 64 bits; negative ones are written as their complement."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, value: bytes) -> bytes:
    """A text, bytes or a message as a field."""
    return varint(number << 3 | LENGTH) + varint(len(value)) + value


def packing_of(message: bytes) -> str:
    """How this message is packed: gzip, deflate or, if it is not, an empty text.

    gRPC gives packed messages on as they came, unmarked. No message that our services take begins with these bytes:
    wire type 7 there is none of, and none of them has a field 15.
    """
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    return "deflate" if message[:1] == b"\x78" and len(message) > 1 and not (0x7800 + message[1]) % 31 else ""


def unpacked_if_light(message: bytes, packing: str) -> bytes | None:
    """The message itself if it is small; None if it is not."""
    if len(message) > LIGHT:
        return None
    unpacker = zlib.decompressobj(_WINDOWS[packing])
    try:
        plain = unpacker.decompress(message, LIGHT)
    except zlib.error as error:
        raise RequestError(f"the message is no {packing}: {error}", code="bad_input") from None
    return plain if unpacker.eof else None


def peeked(message: bytes, packing: str) -> bytes:
    """How a packed message begins."""
    try:
        return zlib.decompressobj(_WINDOWS[packing]).decompress(message[:_PEEKED], _PEEKED)
    except zlib.error as error:
        raise RequestError(f"the message is no {packing}: {error}", code="bad_input") from None
