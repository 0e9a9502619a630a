"""One item of a tensor request as it travels to a worker, and its answer as it comes back: no JSON around the numbers.

    mark   1 byte    a byte that no JSON begins with, so that a worker knows it from a body of the native protocol
    head   4 bytes   length of the head, little endian
    head             msgpack array: a `Head`
    data             the tensors' data back to back; their lengths stand in the head

A tensor's data is binary as the Open Inference Protocol lays it out, or a JSON list as a client sent it or wants it.
Gateways cut and join it without looking inside.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from timebound.errors import RequestError

MARK = b"\xc1"
MEDIA = "application/vnd.timebound.tensors"
"""The media type of an answer in this form; no client sees it."""

Data: TypeAlias = bytes | memoryview

_LENGTH = struct.Struct("<I")


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One tensor of one item; its shape is without the batch."""

    name: str
    datatype: str
    shape: list[int]
    size: int
    """Bytes of its data."""
    is_text: bool = False
    """Whether the data is a JSON list."""


class Wanted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An output that was asked for."""

    name: str
    is_binary: bool
    classes: int = 0
    """How many of the highest values are wanted, as texts, in the place of the tensor; 0 is the tensor itself."""


class Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tensors of an item, and of a request what is wanted of the answer."""

    parts: list[Part]
    wanted: list[Wanted] = []
    """Empty for all outputs."""
    is_binary: bool = False
    """How outputs come that are not among the wanted."""
    parameters: dict[str, Any] = {}
    """What the client said besides, by name."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Head).decode


def pack(head: Head, data: Sequence[Data]) -> bytes:
    """The body of an item: one copy of the data, and no more."""
    encoded = _encode(head)
    return b"".join((MARK, _LENGTH.pack(len(encoded)), encoded, *data))


SHORT = 512
"""Bytes of a head that is kept, read: requests of one kind have the same."""
SMALL = 4_096
"""Bytes of a body that are copied sooner than looked at where they are."""


@lru_cache(256)
def _kept(encoded: bytes) -> Head:
    head: Head = _decode(encoded)
    return head


def _head(view: Data, end: int) -> Head:
    if end - _BEGIN > SHORT:
        long: Head = _decode(view[_BEGIN:end])
        return long
    return _kept(bytes(view[_BEGIN:end]))


_BEGIN = len(MARK) + _LENGTH.size


def head_of(body: Data) -> Head:
    """The head of a body that was unpacked before."""
    return _head(body, _BEGIN + _LENGTH.unpack_from(body, len(MARK))[0])


def head_and_data(body: Data) -> tuple[bytes, int]:
    """The head of a body as `pack` made it, unread, and where its data begins; raises `RequestError` for others."""
    try:
        if body[: len(MARK)] != MARK:
            raise ValueError
        at = _BEGIN + _LENGTH.unpack_from(body, len(MARK))[0]
    except (ValueError, struct.error):
        raise _unreadable() from None
    return bytes(body[_BEGIN:at]), at


def read_head(encoded: bytes) -> Head:
    """What a head says; raises `RequestError`."""
    try:
        head: Head = _decode(encoded)
    except msgspec.MsgspecError:
        raise _unreadable() from None
    return head


def not_whole() -> RequestError:
    """What is said of data that are not as many as their head says."""
    return RequestError("the tensors of this item are not whole")


def _unreadable() -> RequestError:
    return RequestError("the tensors of this item cannot be read")


def unpack(body: Data) -> tuple[Head, list[Data]]:
    """What `pack` made a body of, the data of large ones as views; raises `RequestError` for anything else."""
    view = bytes(body) if len(body) <= SMALL else memoryview(body)
    try:
        if view[:1] != MARK:
            raise ValueError
        at = _BEGIN + _LENGTH.unpack_from(view, len(MARK))[0]
        head = _head(view, at)
    except (ValueError, struct.error, msgspec.MsgspecError):
        raise _unreadable() from None
    data: list[Data] = []
    for part in head.parts:
        data.append(view[at : at + part.size])
        at += part.size
    if at != len(view):
        raise not_whole()
    return head, data
