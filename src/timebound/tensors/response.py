"""The answers to the items of a request, put together as the Open Inference Protocol writes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from timebound.errors import RequestError
from timebound.tensors.datatypes import BYTES
from timebound.tensors.item import SHORT, SMALL, Data, Part, head_and_data, not_whole, read_head, unpack
from timebound.tensors.pieces import PIECE, Steps, as_text, is_wasteful
from timebound.tensors.values import in_form as as_asked

_LENGTH = struct.Struct("<I")
_encode = msgspec.json.Encoder().encode

Column = tuple[Part, list[Data]]
"""An output, and its data of every item."""


def outputs_of(answers: Sequence[Data]) -> list[Column]:
    """The outputs of all items, each in one column; raises `RequestError` if one cannot be a single tensor."""
    first, data = unpack(answers[0])
    if len(answers) == 1:
        return [(part, [own]) for part, own in zip(first.parts, data, strict=True)]
    columns: list[Column] = [(part, []) for part in first.parts]
    for answer in answers:
        head, data = unpack(answer)
        if head is not first and [part.name for part in head.parts] != [part.name for part in first.parts]:
            raise RequestError("the items have different outputs; send them one by one", code="model_failed")
        for place, (part, own) in enumerate(zip(head.parts, data, strict=True)):
            if part is columns[place][0]:  # as most are
                columns[place][1].append(own)
            else:
                columns[place] = _added(*columns[place], part, own)
    return columns


def _added(first: Part, column: list[Data], part: Part, data: Data) -> Column:
    if part.datatype != first.datatype or part.shape != first.shape:
        kinds = f"{first.datatype}{first.shape} and {part.datatype}{part.shape}"
        raise RequestError(
            f"output {part.name!r} is {kinds} for different items; send them one by one", code="model_failed"
        )
    if part.is_text != first.is_text:  # some texts that JSON cannot say among others that it can
        column = [_as_binary(first, each) for each in column]
        data, first = _as_binary(part, data), msgspec.structs.replace(first, is_text=False)
    column.append(data)
    return first, column


def _as_binary(part: Part, data: Data) -> Data:
    if not part.is_text:
        return data
    if len(data) > PIECE:
        raise RequestError(
            f"output {part.name!r} is a text for some items and not for others; ask for it with binary_data",
            code="model_failed",
        )
    texts: list[str] = msgspec.json.decode(data)
    return b"".join(_LENGTH.pack(len(own)) + own for own in (text.encode() for text in texts))


def in_form(columns: Sequence[Column], wanted: Mapping[str, bool], *, is_binary: bool) -> Steps[list[Column]]:
    """The same outputs as binary data or JSON, as asked now: a kept answer is as its first asker wanted it."""
    formed = []
    for part, column in columns:
        each = []
        for data in column:
            each.append((yield from as_asked(part, data, is_binary=wanted.get(part.name, is_binary))))
        is_one_kind = len({own.is_text for own, _ in each}) == 1
        formed.append((each[0][0], [data for _, data in each]) if is_one_kind else (part, column))
    return formed


def raw_outputs(name: str, bodies: Sequence[bytes], *, is_binary: bool) -> Steps[list[Column]]:
    """One BYTES output of answers that are bytes or JSON as they are."""
    if not is_binary:
        texts: list[Data] = []
        for body in bodies:
            text = yield from as_text(body)
            if text is None or is_wasteful(len(text), [body]):
                break  # JSON cannot say it
            texts.append(b"[%b]" % text)
            yield
        else:
            return [(Part(name, BYTES, [], 0, True), texts)]
    return [(Part(name, BYTES, [], 0), [_LENGTH.pack(len(body)) + body for body in bodies])]


def of_one(answer: Data, model: str, version: str, request_id: str) -> tuple[bytes, int | None]:
    """The response to a request of one item, as `response` writes it; raises `RequestError` if it is not whole."""
    encoded, at = head_and_data(answer)
    view = answer if len(answer) <= SMALL else memoryview(answer)
    said: list[Data] = [_model(model, version)]
    if request_id:
        said += (b',"id":', _encode(request_id))
    binary: list[Data] = []
    for before, size, is_text in _said_before(encoded) if len(encoded) <= SHORT else _begun(encoded):
        end = at + size
        if is_text:
            said += (before, view[at:end], b"}")
        else:
            said.append(before)
            binary.append(view[at:end])
        at = end
    if at != len(answer):
        raise not_whole()
    said.append(b"]}" if len(said) > 1 + 2 * bool(request_id) else b',"outputs":[]}')
    head = b"".join(said)
    return (b"".join((head, *binary)), len(head)) if binary else (head, None)


def _begun(encoded: bytes) -> list[tuple[bytes, int, bool]]:
    """What is said of each output before its data, how long that is, and whether it follows as JSON."""
    begun = []
    before = b',"outputs":['
    for part in read_head(encoded).parts:
        said = before + _output(part.name, part.datatype, (1, *part.shape))
        said += b'"data":' if part.is_text else b'"parameters":{"binary_data_size":%d}}' % part.size
        begun.append((said, part.size, part.is_text))
        before = b","
    return begun


_said_before = lru_cache(512)(_begun)


def response(model: str, version: str, request_id: str, columns: Sequence[Column]) -> tuple[bytes, int | None]:
    """The body, and how much of it is JSON if not all of it."""
    said: list[Data] = [_model(model, version)]
    if request_id:
        said += (b',"id":', _encode(request_id))
    binary: list[Data] = []
    before = b',"outputs":['
    for part, column in columns:
        said += (before, _output(part.name, part.datatype, (len(column), *part.shape)))
        before = b","
        if part.is_text:
            said += (b'"data":', _list_of(column), b"}")
        else:
            said.append(b'"parameters":{"binary_data_size":%d}}' % sum(map(len, column)))
            binary += column
    said.append(b"]}" if columns else b',"outputs":[]}')
    head = b"".join(said)
    return (b"".join((head, *binary)), len(head)) if binary else (head, None)


@lru_cache(256)
def _model(name: str, version: str) -> bytes:
    return _encode({"model_name": name, "model_version": version})[:-1]


@lru_cache(1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    return _encode({"name": name, "datatype": datatype, "shape": shape})[:-1] + b","


def _list_of(column: Sequence[Data]) -> Data:
    """One JSON list of several."""
    if len(column) == 1:
        return column[0]
    return b"[" + b",".join(each[1:-1] for each in column if len(each) > 2) + b"]"
