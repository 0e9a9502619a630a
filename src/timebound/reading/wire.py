"""What goes between the gateway and a process that reads bodies; the same on both sides."""

from __future__ import annotations

import socket
import struct
from typing import TypeAlias

import msgspec

HEAD = struct.Struct("<IQI?")  # bytes of the facts, of what comes before the body and of it, and if a print is needed
LENGTH = struct.Struct("<I")  # of what is said

Looked: TypeAlias = tuple[str | None, float, bytes]
"""A body's key and size as `FirstLook` finds them, and its fingerprint; empty if none was needed."""


class Facts(msgspec.Struct, frozen=True, tag="look"):
    """What must be known of a model to look at a body."""

    request_schema: dict[str, object] | None
    key: str | None
    size_field: str | None
    key_ignore: list[str]


class Errand(msgspec.Struct, frozen=True):
    """What a reader is to do. Its module has `open_reader(facts)`: a function of what is told and a body."""

    reader: str
    facts: bytes
    told: bytes


class Known(msgspec.Struct, frozen=True, tag="read"):
    """A reader, and the model it reads for."""

    reader: str
    facts: bytes


class Said(msgspec.Struct, frozen=True):
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""
    code: str = ""
    """Why it is refused, if it is."""
    detail: str = ""
    field: str | None = None
    read: bytes | None = None
    """What a reader says."""


def receive(sock: socket.socket, size: int) -> bytearray:
    """So many bytes; `EOFError` if the other side has left."""
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        received = sock.recv_into(view[filled:])
        if not received:
            raise EOFError
        filled += received
    return data
