"""Between the data of tensors and arrays or values of Python; for workers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import nan, prod
from types import AsyncGeneratorType, GeneratorType
from typing import Any

import msgspec
import numpy as np

from timebound.body import read_json
from timebound.errors import BadInput
from timebound.tensors.datatypes import BYTES, DTYPES, FORMATS, of_dtype
from timebound.tensors.item import Data, Part
from timebound.tensors.pieces import is_wasteful
from timebound.tensors.values import NO_NUMBERS, PLAIN, joined, sayable

_LENGTH = struct.Struct("<I")
_encode = msgspec.json.Encoder().encode


# ---------------------------------------------------------------------- what came


def array_of(part: Part, data: Data) -> Any:
    """A tensor as an array: BF16 as float32, BYTES as texts; raises `BadInput`."""
    if part.datatype == BYTES:
        return np.array([_utf8(part, each) for each in elements(part, data)], dtype=np.str_).reshape(part.shape)
    if part.is_text:
        return _from_list(part, read_json(msgspec.json.decode, data))
    if part.datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(part.shape)
    return np.frombuffer(data, np.dtype(DTYPES[part.datatype])).reshape(part.shape)


def values_of(part: Part, data: Data) -> list[Any]:
    """A tensor's numbers as a flat list of Python's own; raises `BadInput`."""
    count = prod(part.shape)
    if part.is_text:
        values = _plain_list(part, data)
        if values is None or len(values) != count:
            values = _from_list(part, read_json(msgspec.json.decode, data)).ravel().tolist()
        return values
    if part.datatype != "BF16" and count <= _FEW:
        return list(struct.unpack(f"<{count}{FORMATS[part.datatype]}", data))
    numbers: list[Any] = array_of(part, data).ravel().tolist()
    return numbers


_FEW = 64
"""Numbers that are read sooner one by one than by way of an array."""


def _plain_list(part: Part, data: Data) -> list[Any] | None:
    """A flat list of numbers within their range; None for anything else."""
    datatype = "FP32" if part.datatype == "BF16" else part.datatype
    try:
        values = PLAIN[datatype[0]](data)
        if datatype[0] in "IU" and values:
            letter = FORMATS[datatype]
            struct.pack(f"<2{letter}", min(values), max(values))
    except (msgspec.DecodeError, struct.error, RecursionError):
        return None
    return values


def elements(part: Part, data: Data) -> list[bytes]:
    """The elements of a BYTES tensor; raises `BadInput` if they are not as many as its shape says."""
    if part.is_text:
        found = [_bytes(part, value) for value in _flat(read_json(msgspec.json.decode, data))]
    else:
        found = list(_cut(part, memoryview(data)))
    if len(found) != prod(part.shape):
        raise BadInput(f"has {len(found)} elements, its shape says {prod(part.shape)}", field=part.name)
    return found


def _cut(part: Part, view: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(view):
        end = at + 4 + (_LENGTH.unpack(view[at : at + 4])[0] if at + 4 <= len(view) else len(view))
        if end > len(view):
            raise BadInput("has elements that are cut short", field=part.name)
        yield bytes(view[at + 4 : end])
        at = end


def _bytes(part: Part, value: Any) -> bytes:
    if not isinstance(value, str):
        raise BadInput("BYTES in JSON are texts", field=part.name)
    return value.encode("utf-8", "surrogatepass")


def _utf8(part: Part, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise BadInput("is no text in UTF-8", field=part.name) from None


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _from_list(part: Part, values: Any) -> Any:
    """Numbers from JSON, flat or nested."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.asarray(list(_flat(values)), dtype=object)
    if array.size == 0:
        array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        array = np.asarray([_number(part, value) for value in _flat(values)])
    if array.size != prod(part.shape):
        raise BadInput(f"has {array.size} values, its shape says {prod(part.shape)}", field=part.name)
    dtype = np.dtype(DTYPES.get(part.datatype, "float32"))
    allowed = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.size and array.dtype.kind not in allowed:
        raise BadInput(f"has values that are no {part.datatype}", field=part.name)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    is_kept = np.isfinite(cast) == np.isfinite(array) if dtype.kind == "f" else cast == array
    if not is_kept.all():
        raise BadInput(f"has a number beyond what {part.datatype} can hold", field=part.name)
    return cast.reshape(part.shape)


def _number(part: Part, value: Any) -> Any:
    if value is None:
        return nan
    if isinstance(value, str) and value in NO_NUMBERS:
        return NO_NUMBERS[value]
    if isinstance(value, int | float) and -(2**63) <= value < 2**64:
        return value
    raise BadInput(f"has values that are no {part.datatype}", field=part.name)


# ---------------------------------------------------------------------- what goes back


def datatype_of(value: Any) -> tuple[str, Any]:
    """The datatype of an answer's value, and the value as it is written: a scalar, an array, or a list of elements."""
    kind = type(value)
    if kind is bool:
        return "BOOL", value
    if kind is int and -(2**63) <= value < 2**63:
        return "INT64", value
    if kind is float:
        return "FP64", value
    if kind is str or kind is bytes:
        return BYTES, value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        datatype = of_dtype(array.dtype.name)
        return datatype, array if datatype != BYTES else _texts(array.tolist())
    if kind is list or kind is tuple:
        return _of_list(value)
    return BYTES, _json(value)


def _of_list(values: Any) -> tuple[str, Any]:
    if values and all(type(value) in (str, bytes) for value in values):
        return BYTES, list(values)
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return BYTES, _json(values)
    datatype = of_dtype(array.dtype.name)
    return (datatype, array) if datatype in ("BOOL", "INT64", "FP64") else (BYTES, _json(values))


def _texts(values: Any) -> Any:
    """A list of texts as it is; deeper ones, and what is no text, as JSON."""
    if isinstance(values, str | bytes):
        return values
    is_flat = isinstance(values, list) and all(isinstance(value, str | bytes) for value in values)
    return values if is_flat else _json(values)


def _json(value: Any) -> str:
    text: str = msgspec.json.encode(value, enc_hook=plain).decode()
    return text


def plain(value: Any) -> Any:
    """What numpy's values are to JSON; for an encoder's `enc_hook`."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, GeneratorType | AsyncGeneratorType):
        raise TypeError("finish() returned a generator; to stream, `yield` (or `yield from`) in finish() itself")
    raise TypeError(
        f"an answer holds a value of type {type(value).__name__}, which JSON cannot say; convert it in finish()"
    )


def written(name: str, datatype: str, value: Any, *, is_binary: bool) -> tuple[Part, bytes]:
    """A value as `datatype_of` gave it, as a tensor's data."""
    if datatype == BYTES:
        return _written_elements(name, value, is_binary=is_binary)
    if not isinstance(value, np.ndarray):
        data = struct.pack(f"<{FORMATS[datatype]}", value) if is_binary else _encode([sayable(value)])
        return Part(name, datatype, [], len(data), not is_binary), data
    data = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes() if is_binary else _number_list(value)
    return Part(name, datatype, list(value.shape), len(data), not is_binary), data


def _number_list(values: Any) -> bytes:
    is_plain = values.dtype.kind != "f" or bool(np.isfinite(values).all())
    values = values.ravel().tolist()
    return _encode(values if is_plain else [sayable(value) for value in values])


def _written_elements(name: str, value: Any, *, is_binary: bool) -> tuple[Part, bytes]:
    shape = [len(value)] if isinstance(value, list) else []
    each = value if isinstance(value, list) else [value]
    if not is_binary:
        try:
            data = _encode([one if isinstance(one, str) else bytes(one).decode() for one in each])
        except UnicodeDecodeError:
            pass  # JSON cannot say it: it goes as it is, and says so
        else:
            if not is_wasteful(len(data), each):
                return Part(name, BYTES, shape, len(data), True), data
    data = joined(one.encode("utf-8", "replace") if isinstance(one, str) else one for one in each)
    return Part(name, BYTES, shape, len(data), False), data


def highest(name: str, value: Any, count: int) -> list[str]:
    """The highest values of an output with their places, as the classification extension writes them."""
    scores = np.asarray(value)
    if scores.dtype.kind not in "iuf":
        raise BadInput(f"output {name!r} has no numbers to choose the highest of", field=name)
    scores = scores.ravel()
    order = np.argsort(-scores.astype(np.float64), kind="stable")[:count]
    return [f"{scores[place]:f}:{place}" for place in order.tolist()]
