"""Arrays as the binary tensors of the Open Inference Protocol, and back. numpy is imported when a call has tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import TYPE_CHECKING, Any

import msgspec

from timebound.client.message import HEAD_SIZE, Reply
from timebound.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_LENGTH = Struct("<I")
"""Before each element of BYTES: how long it is."""
_KINDS = {"f": "FP", "i": "INT", "u": "UINT"}
"""numpy's kinds of numbers, and what their datatypes begin with; the number of bits follows."""
_BYTES = "BYTES"


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class _Response(msgspec.Struct):
    outputs: list[_Tensor] = []


_read_response = msgspec.json.Decoder(_Response).decode

# ---------------------------------------------------------------------- what goes out


def packed(
    inputs: Mapping[str, ArrayLike], outputs: Sequence[str] | None, parameters: Mapping[str, Any] | None
) -> tuple[int, bytes]:
    """A request's body, and how many bytes of it are JSON; raises `BadInput` for what is no tensor."""
    if not isinstance(inputs, Mapping) or not inputs:
        raise BadInput('give the inputs by their names, such as {"x": array}')
    described, data = [], []
    for name, value in inputs.items():
        shape, datatype, own = _written(name, value)
        described.append(
            {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(own)}}
        )
        data.append(own)
    asks: dict[str, Any] = {"inputs": described, "parameters": {**(parameters or {}), "binary_data_output": True}}
    if outputs is not None:
        if isinstance(outputs, str) or not all(isinstance(name, str) for name in outputs):
            raise BadInput('the outputs are no list of names; give one, such as outputs=["y"]')
        asks["outputs"] = [{"name": name} for name in outputs]
    try:
        head = msgspec.json.encode(asks)
    except (TypeError, ValueError) as problem:
        raise BadInput(f"the parameters cannot be sent as JSON: {problem}") from None
    return len(head), b"".join((head, *data))


def _written(name: str, value: ArrayLike) -> tuple[list[int], str, bytes]:
    """An array's shape, its datatype and its data."""
    import numpy as np

    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as problem:  # ragged; a tensor of torch on a device
        raise BadInput(f"is no array: {problem}", field=name) from None
    if not array.ndim:
        raise BadInput("has no dimensions; the first one counts the items, so give [value] for one", field=name)
    kind = array.dtype.kind
    shape = list(array.shape)
    if kind == "b":
        return shape, "BOOL", array.tobytes()
    if kind in _KINDS and array.dtype.itemsize <= _LENGTH.size * 2:
        bits = array.dtype.itemsize * 8
        return shape, f"{_KINDS[kind]}{bits}", array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    if kind in "USO":
        each = [_element(name, one) for one in array.ravel().tolist()]
        return shape, _BYTES, b"".join(piece for one in each for piece in (_LENGTH.pack(len(one)), one))
    raise BadInput(f"has the type {array.dtype}, which no tensor has; give numbers, texts or bytes", field=name)


def _element(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadInput(f"holds a {type(value).__name__}; give numbers, texts or bytes", field=name)


# ---------------------------------------------------------------------- what comes back


def outputs_in(reply: Reply) -> dict[str, NDArray[Any]]:
    """The outputs of an answer, by name; raises `ValueError` if it is not as the protocol says."""
    told = reply.headers.get(HEAD_SIZE)
    end = len(reply.body) if told is None else int(told)
    body = memoryview(reply.body)
    found, at = {}, end
    for each in _read_response(body[:end]).outputs:
        size = each.parameters.get("binary_data_size")
        if size is None:
            found[each.name] = _from_json(each)
            continue
        found[each.name] = _from_bytes(each, body[at : at + size])
        at += size
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes, its outputs {at}")
    return found


def _from_bytes(each: _Tensor, data: memoryview) -> NDArray[Any]:
    import numpy as np

    if each.datatype == _BYTES:
        return np.array(_elements(data), dtype=object).reshape(each.shape)
    if each.datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(each.shape)
    return np.frombuffer(data, _dtype(each)).reshape(each.shape)


def _from_json(each: _Tensor) -> NDArray[Any]:
    import numpy as np

    if each.datatype == _BYTES:
        texts = [text.encode() if isinstance(text, str) else text for text in _flat(each.data)]
        return np.array(texts, dtype=object).reshape(each.shape)
    return np.asarray(list(_flat(each.data))).astype(_dtype(each)).reshape(each.shape)


def _dtype(each: _Tensor) -> str:
    """What numpy calls a datatype of numbers."""
    if each.datatype == "BOOL":
        return "?"
    name = "f4" if each.datatype == "BF16" else ""
    for kind, begins in _KINDS.items():
        bits = each.datatype.removeprefix(begins)
        if bits != each.datatype and bits in ("8", "16", "32", "64"):
            name = f"<{kind}{int(bits) // 8}"
    if not name:
        raise ValueError(f"the output {each.name!r} has the unknown datatype {each.datatype!r}")
    return name


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in _flat(value)] if isinstance(values, list) else [values]


def _elements(data: memoryview) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        try:
            start = at + _LENGTH.size
            at = start + _LENGTH.unpack_from(data, at)[0]
        except error:
            at = len(data) + 1
        if at > len(data):
            raise ValueError("an element of BYTES is cut short")
        found.append(bytes(data[start:at]))
    return found
