"""The wire between gateway and worker: length-prefixed frames over Unix sockets, no pickle.

A frame:

    "TB"   2 bytes   magic
    kind   1 byte    index into KINDS: which head follows; a new kind is appended, never inserted
    0      1 byte    reserved
    head   4 bytes   length of the head, little endian
    body   4 bytes   length of the body
    head             msgpack array: one of the structs below
    body             the items' raw bytes back to back; their lengths stand in the head

Each slot of a worker has a socket of its own, so a slot blocks on its next batch and nothing is queued
inside the worker; one more socket, the control channel, carries the worker's life.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import msgspec

from timebound.errors import WireError
from timebound.types import ModelInfo

PREFIX = struct.Struct("<2sBxII")
MAGIC = b"TB"
MAX_BODY = (1 << 32) - 1
SOCKET_BUFFER = 4 << 20


class Load(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: load this target; use at most `max_slots` slots, `threads` each.

    An understudy imports the target without loading it: no weights, and no slots that infer.
    """

    target: str
    max_slots: int
    threads: int
    niceness: int
    log_level: str
    log_json: bool
    is_understudy: bool = False
    versions: dict[str, list[str]] = {}
    """By model, the versions to load; without a word, the newest."""
    engines: dict[str, str] = {}
    """By model, what its ONNX files run on; under "" for all others."""


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: every model is loaded and has answered its warm-up run."""

    models: list[ModelInfo]
    slots: int
    doubts: list[str] = []
    """What looks like a mistake and is none for sure; sentences for people."""


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, control: cannot load; `sentence` is for people, `trace` for `--debug`."""

    sentence: str
    trace: str


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, control: finish running batches and leave."""


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: compute these; the body holds one payload per length."""

    id: int
    model: str
    lengths: list[int]
    ask_after_s: float = 0.0
    """From then on the worker waits for a `Decision` after each ensemble member; before, it only reports."""
    cores: int = 1
    """How many cores are free for it: with more than one, members may run side by side, and nothing is asked."""
    votes: list[int] = []
    """Places of the items whose clients want to know what each member says by itself."""


class Outcomes(msgspec.Struct, array_like=True, frozen=True):
    """Worker to gateway, slot: one outcome per item of the batch, in order.

    With fewer `members` than `of_members` these are the best answers so far, and the worker waits for a `Decision`,
    unless it `is_note`: then it goes on.
    """

    id: int
    codes: list[str]
    media: list[str]
    lengths: list[int]
    prepare_s: float
    infer_s: float
    finish_s: float
    members: int
    of_members: int
    votes: dict[int, str] = {}
    """By place, for the items that asked: what each member says by itself."""
    is_note: bool = False
    is_short_of_memory: bool = False


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to worker, slot: go on with the batch's next member, or leave it at what was reported."""

    id: int
    go: bool


class Errand(msgspec.Struct, array_like=True, frozen=True):
    """Gateway to understudy: for each payload run `fallback` or `size` of its model."""

    numbers: list[int]
    duties: list[str]
    models: list[str]
    lengths: list[int]


class ErrandDone(msgspec.Struct, array_like=True, frozen=True):
    """Understudy to gateway: a size, or an answer (its bytes are the body), or a code that says why not."""

    number: int
    code: str
    media: str
    size: float


Head: TypeAlias = Load | Ready | Failed | Stop | Batch | Outcomes | Decision | Errand | ErrandDone
KINDS: tuple[type[Head], ...] = (Load, Ready, Failed, Stop, Batch, Outcomes, Decision, Errand, ErrandDone)

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


def read_frame(sock: socket.socket) -> tuple[Head, memoryview] | None:
    """Block until one whole frame is there; None at the end of the stream."""
    prefix = _read_exactly(sock, PREFIX.size)
    if prefix is None:
        return None
    kind, head_size, body_size = parse_prefix(prefix)
    data = _read_exactly(sock, head_size + body_size)
    if data is None:
        return None
    return decode_head(kind, data[:head_size]), data[head_size:]


def write_frame(sock: socket.socket, head: Head, payloads: Sequence[bytes | memoryview] = ()) -> None:
    """Block until the whole frame is sent."""
    sock.sendall(b"".join(encode(head, payloads)))


def _read_exactly(sock: socket.socket, size: int) -> memoryview | None:
    data = memoryview(bytearray(size))
    filled = 0
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
