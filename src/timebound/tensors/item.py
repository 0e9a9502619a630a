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


def head_of(body: Data) -> Head:
    """The head of a body that was unpacked before."""
    view = memoryview(body)
    head: Head = _decode(view[5 : 5 + _LENGTH.unpack(view[1:5])[0]])
    return head


def unpack(body: Data, heads: dict[bytes, Head] | None = None) -> tuple[Head, list[memoryview]]:
    """What `pack` made a body of, the data as views; raises `RequestError` for anything else.

    `heads` are those of other bodies, as they came: many have the same, and then it is read once.
    """
    view = memoryview(body)
    try:
        if view[:1] != MARK:
            raise ValueError
        at = 5 + _LENGTH.unpack(view[1:5])[0]
        if heads is None:
            head: Head = _decode(view[5:at])
        elif (known := heads.get(encoded := bytes(view[5:at]))) is not None:
            head = known
        else:
            head = heads[encoded] = _decode(encoded)
    except (ValueError, struct.error, msgspec.MsgspecError):
        raise RequestError("the tensors of this item cannot be read") from None
    data = []
    for part in head.parts:
        data.append(view[at : at + part.size])
        at += part.size
    if at != len(view):
        raise RequestError("the tensors of this item are not whole")
    return head, data
