"""The wire between gateway and worker: length-prefixed frames over Unix sockets, no pickle.

A frame:

    "TB"   2 bytes   magic
    kind   1 byte    index into KINDS: which head follows; a new kind is appended, never inserted
    0      1 byte    reserved
    head   4 bytes   length of the head, little endian
    body   4 bytes   length of the body
    head             msgpack array: one of the structs of `messages.py`
    body             the items' raw bytes back to back; their lengths stand in the head

Each slot of a worker has a socket of its own, so a slot blocks on its next batch and nothing is queued
inside the worker; one more socket, the control channel, carries the worker's life.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

import msgspec

from timebound.errors import WireError
from timebound.workers.messages import KINDS, Head

log = logging.getLogger("timebound.workers")

PREFIX = struct.Struct("<2sBxII")
MAGIC = b"TB"
MAX_BODY = (1 << 32) - 1
SOCKET_BUFFER = 4 << 20
Room: TypeAlias = Callable[[int], bytearray | memoryview]
"""Gives memory for a frame of so many bytes."""


_encoder = msgspec.msgpack.Encoder()
_decoders = [msgspec.msgpack.Decoder(kind) for kind in KINDS]
_kind_of = {kind: number for number, kind in enumerate(KINDS)}


def encode(head: Head, payloads: Sequence[bytes | memoryview] = ()) -> list[bytes | memoryview]:
    """A frame as buffers for `writelines` or `sendmsg`; payloads are not copied."""
    encoded = _encoder.encode(head)
    size = sum(map(len, payloads))
    if size > MAX_BODY:
        raise WireError(f"a frame's body of {size} bytes is over the limit of {MAX_BODY}")
    return [PREFIX.pack(MAGIC, _kind_of[type(head)], len(encoded), size) + encoded, *payloads]


def parse_prefix(prefix: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """(kind, head length, body length) of the frame that starts with these 12 bytes."""
    magic, kind, head, body = PREFIX.unpack_from(prefix)
    if magic != MAGIC or kind >= len(KINDS):
        raise WireError(f"not a frame: {bytes(prefix[: PREFIX.size])!r}")
    return kind, head, body


def decode_head(kind: int, data: bytes | bytearray | memoryview) -> Head:
    """The head of a frame of this kind."""
    try:
        head: Head = _decoders[kind].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"bad {KINDS[kind].__name__} head: {error}") from error
    return head


def split(body: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """The body's items, as views."""
    ends = list(accumulate(lengths))
    if (ends[-1] if ends else 0) != len(body) or any(length < 0 for length in lengths):
        raise WireError(f"lengths add up to {ends[-1] if ends else 0}, the body has {len(body)} bytes")
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class FrameReader:
    """Cuts a stream of chunks into frames; for the side that is fed by an event loop."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Head, memoryview]]:
        """The frames that `data` completes, in order."""
        whole: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            whole = self._buffer
        frames: list[tuple[Head, memoryview]] = []
        view, start = memoryview(whole), 0
        while len(whole) - start >= PREFIX.size:
            kind, head_size, body_size = parse_prefix(view[start : start + PREFIX.size])
            body_at = start + PREFIX.size + head_size
            end = body_at + body_size
            if end > len(whole):
                break
            frames.append((decode_head(kind, view[start + PREFIX.size : body_at]), view[body_at:end]))
            start = end
        # A buffer with views on it cannot grow, so what is left over moves to a new one.
        if start or whole is not self._buffer:
            self._buffer = bytearray(view[start:])
        return frames


class Channel(asyncio.Protocol):
    """The gateway's end of a socket to a worker: `receive` gets each frame."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    async def open(self, sock: socket.socket) -> None:
        """Take over the gateway's end of the socket."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for head, body in self._reader.feed(data):
                self.receive(head, body)
        except WireError as error:
            log.error("%s breaks the wire format: %s", self, error)
            self.close()

    def receive(self, head: Head, body: memoryview) -> None:
        """A frame came."""
        raise NotImplementedError

    def send(self, head: Head, payloads: Sequence[bytes] = ()) -> None:
        """Tell the worker something; ignored if it is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(encode(head, payloads))

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


def read_frame(sock: socket.socket, room: Room = bytearray) -> tuple[Head, memoryview] | None:
    """Block until one whole frame is there, in this room; None at the end of the stream."""
    prefix = _read_exactly(sock, memoryview(bytearray(PREFIX.size)))
    if prefix is None:
        return None
    kind, head_size, body_size = parse_prefix(prefix)
    data = _read_exactly(sock, memoryview(room(head_size + body_size)))
    if data is None:
        return None
    return decode_head(kind, data[:head_size]), data[head_size:]


def write_frame(sock: socket.socket, head: Head, payloads: Sequence[bytes | memoryview] = ()) -> None:
    """Block until the whole frame is sent."""
    sock.sendall(b"".join(encode(head, payloads)))


def _read_exactly(sock: socket.socket, data: memoryview) -> memoryview | None:
    filled, size = 0, len(data)
    while filled < size:
        received = sock.recv_into(data[filled:])
        if received == 0:
            return None
        filled += received
    return data


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets with roomy buffers, so that a batch crosses without waiting for the reader."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    return pair
