"""A request to a handler as it travels to a worker, and an answer that is more than a body as it comes back.

    mark   8 bytes   tells it from a body of another protocol
    head   4 bytes   length of the head, little endian
    head             msgpack: an `Asked` or a `Said`
    body             as the client sent it, or as it gets it

The gateway looks at no body: JSON, texts and forms are read in the worker.
"""

from __future__ import annotations

import struct

import msgspec

MARK = b"\xc1tb-ask\x01"
SAID = "application/vnd.timebound.handler"
"""The media type of an answer with a status or headers of its own; no client sees it."""

_LENGTH = struct.Struct("<I")


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """What a request brings besides its body."""

    headers: list[tuple[bytes, bytes]]
    more: dict[str, str] = {}
    """Headers that the path stands for, such as `explain`, or the parameters of a request in tensors."""
    query: bytes = b""
    is_bare: bool = False
    """Whether the client's protocol has no place for a status or headers of the handler's own."""


class Said(msgspec.Struct, array_like=True, frozen=True):
    """What an answer says besides its body."""

    status: int
    media: str
    headers: list[tuple[str, str]]


_read_asked = msgspec.msgpack.Decoder(Asked).decode
_read_said = msgspec.msgpack.Decoder(Said).decode


def pack_asked(asked: Asked, body: bytes) -> bytes:
    """A request as the worker gets it."""
    head = msgspec.msgpack.encode(asked)
    return b"".join((MARK, _LENGTH.pack(len(head)), head, body))


def open_asked(item: bytes | memoryview) -> tuple[Asked, memoryview]:
    """What came with an item, and its body; of another protocol's, that is the whole item."""
    view = memoryview(item)
    if view[: len(MARK)] != MARK:
        return Asked([]), view
    try:
        start = len(MARK) + _LENGTH.size
        end = start + _LENGTH.unpack_from(view, len(MARK))[0]
        return _read_asked(view[start:end]), view[end:]
    except (struct.error, msgspec.DecodeError):  # another protocol's body that happens to begin so
        return Asked([]), view


def is_asked(item: bytes | memoryview) -> bool:
    """Whether an item came by the handlers' own protocol, which can say a status and headers."""
    return memoryview(item)[: len(MARK)] == MARK


def pack_said(said: Said, body: bytes) -> bytes:
    """An answer as the gateway gets it."""
    head = msgspec.msgpack.encode(said)
    return b"".join((_LENGTH.pack(len(head)), head, body))


def open_said(body: bytes) -> tuple[Said, bytes]:
    """What an answer says, and its body."""
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    return _read_said(body[_LENGTH.size : end]), body[end:]
