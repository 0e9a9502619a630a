"""A tensor's data, from a JSON list to binary as the protocol lays it out, and back; the values stay the same.

For gateways: it needs no numpy, and no step takes long.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf, isfinite, nan, prod
from typing import Any

import msgspec

from timebound.store.fingerprint import readable
from timebound.tensors.datatypes import BYTES, FORMATS, SIZES
from timebound.tensors.item import Data, Part
from timebound.tensors.pieces import PIECE, Steps, as_text, is_wasteful

NO_NUMBERS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""Numbers that JSON has none for, as protobuf writes them in JSON."""
_MOST_VALUES = 1_000_000
"""Of a JSON list; to read more takes longer than a tenth of a second, even where nobody else waits for it."""
_MOST_DIMENSIONS = 32
_FEW_BYTES = 16_384
"""Of a tensor's data that are changed in one step."""
_LENGTH = struct.Struct("<I")
_SHORT = [_LENGTH.pack(length) for length in range(256)]

_encode = msgspec.json.Encoder().encode
_any = msgspec.json.Decoder().decode
_texts = msgspec.json.Decoder(list[str]).decode
PLAIN: dict[str, Callable[[Data], list[Any]]] = {
    "F": msgspec.json.Decoder(list[float]).decode,
    "I": msgspec.json.Decoder(list[int]).decode,
    "U": msgspec.json.Decoder(list[int]).decode,
    "B": msgspec.json.Decoder(list[bool]).decode,
}
"""By the first letter of the datatype: how a flat list is read."""
_CANNOT = (
    msgspec.DecodeError, AttributeError, OverflowError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip


def as_binary(datatype: str, shape: Sequence[int], data: Data) -> bytes | None:
    """A JSON list, flat or nested, as binary data; None if it is no tensor of this kind, or too long to be read."""
    try:
        text = readable(data)
        if text.count(b",") > _MOST_VALUES:
            return None
        if datatype == BYTES:
            values = _flat(_texts, text)
        else:
            values = _flat(PLAIN["F" if datatype == "BF16" else datatype[0]], text)
        return _packed(datatype, values) if len(values) == prod(shape) else None
    except _CANNOT:
        return None


def _flat(read: Callable[[Data], list[Any]], text: bytes) -> list[Any]:
    try:
        return read(text)
    except msgspec.ValidationError:  # nested, or with what JSON has no numbers for
        values = _any(text)
    for _ in range(_MOST_DIMENSIONS):
        if set(map(type, values)) != {list}:
            break
        values = list(chain.from_iterable(values))
    return list(values)


def _packed(datatype: str, values: list[Any]) -> bytes | None:
    if datatype == BYTES:
        return joined([text.encode("utf-8", "surrogatepass") for text in values])
    if datatype in ("FP16", "BF16", "FP32", "FP64"):
        values = [nan if value is None else NO_NUMBERS.get(value, value) for value in values]
    if datatype != "BF16":
        return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)
    halves = array("H", array("f", values).tobytes())
    return None if any(halves[::2]) else halves[1::2].tobytes()  # a lower half that says something fits into no BF16


def joined(each: Iterable[bytes]) -> bytes:
    """BYTES elements as the protocol lays them out."""
    return b"".join(
        [piece for one in each for piece in (_SHORT[len(one)] if len(one) < 256 else _LENGTH.pack(len(one)), one)]
    )


def sayable(value: float) -> Any:
    """A number as JSON can say it."""
    return value if isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def in_form(part: Part, data: Data, *, is_binary: bool) -> Steps[tuple[Part, Data]]:
    """An output as binary data, or as a JSON list; as it is where it cannot be said so, or only at length."""
    if part.is_text is not is_binary:
        return part, data
    steps = _in_binary(part, bytes(data)) if is_binary else _in_text(part, bytes(data))
    try:
        changed = yield from steps
    except _CANNOT:
        changed = None
    if changed is None:
        return part, data
    return Part(part.name, part.datatype, part.shape, len(changed), not is_binary), changed


def _in_binary(part: Part, data: bytes) -> Steps[bytes | None]:
    """From a flat list, as outputs are."""
    if part.datatype == BYTES:
        return joined([text.encode("utf-8", "surrogatepass") for text in _texts(data)]) if len(data) <= PIECE else None
    pieces, at = [], 1
    while at < len(data):
        end = data.find(b",", min(at + _FEW_BYTES, len(data)))
        end = end if end >= 0 else len(data) - 1
        values = _flat(PLAIN["F" if part.datatype == "BF16" else part.datatype[0]], b"[%b]" % data[at:end])
        if (binary := _packed(part.datatype, values)) is None:
            return None
        pieces.append(binary)
        at = end + 1
        yield
    return b"".join(pieces)


def _in_text(part: Part, data: bytes) -> Steps[bytes | None]:
    if part.datatype == BYTES:
        return (yield from _texts_of(data))
    if part.datatype == "BF16":
        return None
    size, letter, pieces = SIZES[part.datatype], FORMATS[part.datatype], []
    step = _FEW_BYTES // 8 * size
    for at in range(0, len(data), step):
        some = data[at : at + step]
        values: Sequence[Any] = struct.unpack(f"<{len(some) // size}{letter}", some)
        if letter in "efd":
            values = [sayable(value) for value in values]
        pieces.append(_encode(values)[1:-1])
        yield
    return b"[%b]" % b",".join(pieces)


def _texts_of(data: bytes) -> Steps[bytes | None]:
    elements, texts, at, pause = [], [], 0, 0
    while at < len(data):
        end = at + 4 + _LENGTH.unpack_from(data, at)[0]
        elements.append(data[at + 4 : end])
        text = yield from as_text(elements[-1])
        if text is None:
            return None
        texts.append(text)
        at = end
        if at > pause + _FEW_BYTES:
            pause = at
            yield
    written = b"[%b]" % b",".join(texts)
    return None if is_wasteful(len(written), elements) else written
