"""The body of an inference request over HTTP, JSON and binary data behind it, cut into items.

It runs in the gateway for small bodies, and for others in the process of `reading/`, which imports this file by its
name.
"""

from __future__ import annotations

import re
import struct
from math import prod
from typing import Annotated, Any

import msgspec

from timebound.body import read_json
from timebound.errors import RequestError
from timebound.tensors.asked import MOST_ITEMS
from timebound.tensors.cut import cut
from timebound.tensors.datatypes import BYTES, SIZES
from timebound.tensors.given import Asks, Facts, Given, Infer, check_size, wrong
from timebound.tensors.packing import unpacked

_MOST_DIMENSIONS = 32
_FEW_ITEMS, _FEW_ELEMENTS = 64, 1_000
_BESIDES = 8
"""Commas at least that a request with many values has besides those between them."""
_LENGTH = struct.Struct("<I")
_BARE_WORDS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?\b(?:NaN|Infinity)\b', re.S)
"""Texts, and the words that Python and others write for numbers which JSON has none for. Nothing is looked at twice: a
text without an end goes on to the end."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What the headers of a request say of its body."""

    head_size: int | None = None
    """`Inference-Header-Content-Length`; None without one."""
    encoding: str = ""
    most: int = 0
    """Bytes that it may have when it is unpacked."""
    needs_print: bool = False


_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class _Input(msgspec.Struct):
    name: str
    shape: Annotated[list[_Length], msgspec.Meta(min_length=1, max_length=_MOST_DIMENSIONS)]
    datatype: str
    data: msgspec.Raw = msgspec.Raw()
    parameters: dict[str, Any] | None = None


class _Request(Asks, kw_only=True):
    inputs: list[_Input]


_decode = msgspec.json.Decoder(_Request).decode


def read(facts: Facts, told: Told, body: bytes) -> Infer:
    """The items of a request; raises `RequestError` that names what is wrong with it."""
    if told.encoding:
        body = unpacked(body, told.encoding, told.most)
    if not body:
        raise RequestError("the body is empty", code="empty_body")
    if told.head_size == 0:
        return cut(facts, Asks(), [_whole_body(facts, body)], needs_print=told.needs_print)
    request, given = _parts(told.head_size, body)
    return cut(facts, request, given, needs_print=told.needs_print)


def is_laborious(head: bytes) -> bool:
    """Whether the JSON of a request announces so many items or BYTES elements that to cut them takes long."""
    try:
        inputs = _decode(head).inputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # it will be refused
    return any(
        each.shape[0] > _FEW_ITEMS
        or (each.datatype == BYTES and each.shape[0] > 1 and prod(each.shape) > _FEW_ELEMENTS)
        for each in inputs
    )


def has_many_values(head: bytes) -> bool:
    """Whether the JSON of a request has values of so many items that to cut them takes long."""
    if head.count(b",") <= MOST_ITEMS + _BESIDES:
        return False
    try:
        inputs = _decode(head).inputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # it will be refused
    return sum(each.shape[0] for each in inputs) > MOST_ITEMS


# ---------------------------------------------------------------------- from bytes to inputs


def _parts(head_size: int | None, body: bytes) -> tuple[_Request, list[Given]]:
    """The JSON of a request, and its inputs with their data: from the JSON, or from what follows it."""
    if head_size is not None and not 0 < head_size <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {head_size}, the body has {len(body)} bytes", code="bad_header"
        )
    end = len(body) if head_size is None else head_size
    text = body if end == len(body) else body[:end]
    request = _decoded(text)
    view, at, given = memoryview(body), end, []
    for each in request.inputs:
        parameters = each.parameters or {}
        if "shared_memory_region" in parameters:
            raise wrong(each.name, "comes by shared memory, which is not supported; send its data")
        size, data = parameters.get("binary_data_size"), memoryview(each.data)
        has_data = len(data) > 0 and data[0] != _NULL
        if size is None:
            if not has_data:
                raise wrong(each.name, "has neither data nor binary_data_size")
            given.append(Given(each.name, each.datatype, each.shape, data, True))
            continue
        if has_data:
            raise wrong(each.name, "has both data and binary_data_size; send one of them")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise wrong(each.name, "has a binary_data_size that is no whole number")
        if at + size > len(body):
            raise wrong(each.name, f"has a binary_data_size of {size}, and {len(body) - at} bytes are left of the body")
        given.append(Given(each.name, each.datatype, each.shape, view[at : at + size], False))
        at += size
    if at != len(body):
        raise RequestError(f"the body has {len(body) - at} bytes more than its inputs say", code="bad_input")
    for one in given:
        check_size(one)
    return request, given


def _decoded(text: bytes) -> _Request:
    try:
        request: _Request = read_json(_decode, text)
    except RequestError as error:
        if error.code != "malformed_json" or (b"NaN" not in text and b"Infinity" not in text):
            raise
        request = read_json(_decode, _BARE_WORDS.sub(_quoted, text))
    return request


def _quoted(word: re.Match[bytes]) -> bytes:
    return word[0] if word[0].startswith(b'"') else b'"%b"' % word[0]


_NULL = ord("n")


def _whole_body(facts: Facts, body: bytes) -> Given:
    """The one input of a model whose request is nothing but its data."""
    needed = [each for each in facts.inputs if not each.is_optional] or facts.inputs
    if len(needed) != 1:
        raise RequestError("Inference-Header-Content-Length: 0 is for models with one input", code="bad_header")
    spec = needed[0]
    if spec.datatype == BYTES:
        return Given(spec.name, BYTES, [1] * max(1, len(spec.shape)), _LENGTH.pack(len(body)) + body, False)
    free = [place for place, size in enumerate(spec.shape) if size < 0]
    fixed = SIZES[spec.datatype] * prod(size for size in spec.shape if size >= 0)
    if len(free) > 2 or not fixed or len(body) % fixed:
        raise wrong(spec.name, f"has {len(body)} bytes, which do not make {spec.datatype}{spec.shape}")
    shape = [1 if place != free[-1] else len(body) // fixed for place in free] if free else []
    sizes = iter(shape)
    return Given(spec.name, spec.datatype, [next(sizes) if s < 0 else s for s in spec.shape], body, False)


# ---------------------------------------------------------------------- for the process that reads heavy bodies

_told = msgspec.msgpack.Decoder(Told).decode


class Reader:
    """Cuts the bodies of one model elsewhere."""

    def __init__(self, facts: bytes) -> None:
        self._facts = msgspec.msgpack.decode(facts, type=Facts)

    def __call__(self, told: bytes, body: bytes) -> bytes:
        """What `Infer` says, as msgpack."""
        return msgspec.msgpack.encode(read(self._facts, _told(told), body))


open_reader = Reader
