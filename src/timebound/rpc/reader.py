"""A ModelInferRequest, cut into items.

It runs in the gateway for light messages, and for others in the process of `reading/`, which imports this file by its
name.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from timebound.errors import RequestError
from timebound.rpc.schema import message
from timebound.rpc.wire import spans
from timebound.tensors.cut import cut
from timebound.tensors.datatypes import BYTES
from timebound.tensors.given import Asks, Facts, Given, Infer, Output, check_size, wrong
from timebound.tensors.item import Data
from timebound.tensors.packing import unpacked
from timebound.tensors.request import Told

_RAW = 7
"""The number of `raw_input_contents`."""
_WHOLE = 2_048
"""Bytes of a message that protobuf reads whole; from longer ones the data is taken first."""
LIGHT_REST = 4_096
"""Bytes of a message besides `raw_input_contents` that are read on the event loop."""
_LIGHT_RAW = 16_000
_FEW_ITEMS, _FEW_ELEMENTS = 64, 1_000
_MOST_TENSORS = 1_000
_MOST_DIMENSIONS = 32
_Request = message("inference.ModelInferRequest")
_LENGTH = struct.Struct("<I")

_CONTENTS = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
}
"""By datatype: where its values stand, and what `array` calls them."""


_LONGEST_NAME = 4_096
"""Bytes of a name: longer ones are not looked at, for they are read on the event loop."""


class Named(NamedTuple):
    """How a request begins: who is asked, and what the client calls it."""

    model: str = ""
    version: str = ""
    id: str = ""


def named(message: Data) -> Named:
    """What is said first in a message, of which perhaps only the beginning is here; raises `RequestError`.

    Clients write fields in the order of their numbers: behind the model's name, a larger one ends the search.
    """
    texts = [b"", b"", b""]
    try:
        for number, _, start, end in spans(message):
            if number <= len(texts):
                texts[number - 1] = bytes(message[start : min(end, start + _LONGEST_NAME + 1)])
            elif texts[0]:
                break
    except RequestError:
        if not texts[0]:
            raise
    if not texts[0]:
        raise RequestError("the request names no model; set model_name", code="bad_input")
    which = "the model's name, its version or the id"
    if max(map(len, texts)) > _LONGEST_NAME:
        raise RequestError(f"{which} has more than {_LONGEST_NAME} bytes", code="bad_input")
    try:
        return Named(*[text.decode() for text in texts])
    except UnicodeDecodeError:
        raise RequestError(f"{which} is no text in UTF-8", code="bad_input") from None


def is_heavy(message: bytes) -> bool:
    """Whether to read this message may take the event loop more than a millisecond; raises `RequestError`."""
    rest, raws = _apart(message)
    if len(rest) > LIGHT_REST:
        return True
    if sum(map(len, raws)) <= _LIGHT_RAW:
        return False
    inputs = _decoded(rest).inputs
    return any(
        each.shape[0] > _FEW_ITEMS
        or (each.datatype == BYTES and each.shape[0] > 1 and prod(each.shape) > _FEW_ELEMENTS)
        for each in inputs
        if each.shape
    )


def read(facts: Facts, told: Told, message: bytes) -> Infer:
    """The items of a request; raises `RequestError` that names what is wrong with it."""
    if told.encoding:
        message = unpacked(message, told.encoding, told.most)
    raws: list[Data]
    if len(message) <= _WHOLE:
        request = _decoded(message)
        raws = list(request.raw_input_contents)
    else:
        rest, raws = _apart(message)
        request = _decoded(rest)
    outputs = [Output(each.name, _plain(each.parameters)) for each in request.outputs]
    for output in outputs:
        if output.parameters is not None:
            output.parameters.pop("binary_data", None)  # they all are
    asks = Asks(outputs, request.id, _plain(request.parameters))
    given = _given(request, raws)
    return cut(facts, asks, given, needs_print=told.needs_print, is_binary=True)


def _apart(message: bytes) -> tuple[bytes, list[Data]]:
    """A message without its raw data, and that data, uncopied."""
    view, kept, raws, at = memoryview(message), [], [], 0
    for number, tag, start, end in spans(message):
        if number == _RAW and end - start >= 0:
            kept.append(view[at:tag])
            raws.append(view[start:end])
            at = end
    kept.append(view[at:])
    return b"".join(kept), list(raws)


def _decoded(message: bytes) -> Any:
    try:
        request = _Request.FromString(message)
    except DecodeError:
        raise RequestError("the message is no ModelInferRequest", code="bad_input") from None
    if len(request.inputs) > _MOST_TENSORS or len(request.outputs) > _MOST_TENSORS:
        raise RequestError(f"the request has more than {_MOST_TENSORS} tensors", code="bad_input")
    return request


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    if not parameters:
        return None
    said = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        said[name] = None if choice is None else getattr(parameter, choice)
    return said


def _given(request: Any, raws: list[Data]) -> list[Given]:
    inputs = request.inputs
    if raws and len(raws) != len(inputs):
        raise RequestError(
            f"raw_input_contents has {len(raws)} entries for {len(inputs)} inputs; send one for each input, in order",
            code="bad_input",
        )
    given = []
    for place, each in enumerate(inputs):
        name, datatype, shape = each.name, each.datatype, list(each.shape)
        if not 0 < len(shape) <= _MOST_DIMENSIONS or not all(0 <= size < 1 << 40 for size in shape):
            raise wrong(name, f"has the shape {shape[:9]}; send 1 to {_MOST_DIMENSIONS} dimensions, none negative")
        if "shared_memory_region" in each.parameters:
            raise wrong(name, "comes by shared memory, which is not supported; send its data")
        has_contents = each.HasField("contents") and each.contents.ByteSize() > 0
        if raws and has_contents:
            raise wrong(name, "has both contents and raw_input_contents; send one of them")
        data = raws[place] if raws else _data(name, datatype, each.contents)
        one = Given(name, datatype, shape, data)
        check_size(one)
        given.append(one)
    return given


def _data(name: str, datatype: str, contents: Any) -> bytes:
    """Typed contents as binary data."""
    if datatype == BYTES:
        return b"".join(part for one in contents.bytes_contents for part in (_LENGTH.pack(len(one)), one))
    if datatype not in _CONTENTS:
        if datatype in ("FP16", "BF16"):
            raise wrong(name, f"is {datatype}, which goes in raw_input_contents alone")
        return b""  # it will be refused
    source, letter = _CONTENTS[datatype]
    try:
        return array(letter, getattr(contents, source)).tobytes()
    except OverflowError:
        raise wrong(name, f"has a number beyond what {datatype} can hold") from None


# ---------------------------------------------------------------------- for the process that reads heavy messages

_told = msgspec.msgpack.Decoder(Told).decode


class Reader:
    """Cuts the messages for one model elsewhere."""

    def __init__(self, facts: bytes) -> None:
        self._facts = msgspec.msgpack.decode(facts, type=Facts)

    def __call__(self, told: bytes, message: bytes) -> bytes:
        """What `Infer` says, as msgpack."""
        return msgspec.msgpack.encode(read(self._facts, _told(told), message))


open_reader = Reader
