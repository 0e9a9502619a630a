"""A ready-made model around one model file: its request and answer are read from the file's signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np

from timebound.backends.base import Backend, TensorSpec
from timebound.body import read_json
from timebound.errors import BadInput, RequestError, SetupError
from timebound.model import Model


def file_model(net: Backend, *, name: str, version: str = "1") -> Model:
    """A model that takes one item per request: `{"<input>": nested lists}`, without the batch dimension."""
    for spec in net.inputs:
        if not spec.shape:
            raise SetupError(f"{net.label}: input {spec} has no batch dimension; export it with one, or write a class")
    request = _request_type(net.inputs)
    attributes = {
        "name": name,
        "version": version,
        "Request": request,
        "__read_body__": staticmethod(_reader(request, net.inputs)),
        "max_batch": min(net.max_batch or Model.max_batch, Model.max_batch),
        "example": {spec.name: zeros(spec).tolist() for spec in net.inputs},
    }
    model: Model = type("ModelFile", (FileModel,), attributes)()
    model.net = net
    return model


class FileModel(Model):
    """Arrays in, arrays out; what differs from file to file is set by `file_model`."""

    def load(self) -> None:
        """The file is open already: its signature was needed to make the class."""

    def request_of(self, arrays: Mapping[str, Any]) -> Any:
        """A request from arrays by the names of the inputs, as tensor protocols bring them."""
        request: Any = type(self).Request
        return request(*(arrays[spec.name] for spec in self.net.inputs))

    def prepare(self, request: Any) -> Any:
        arrays = {
            spec.name: _item(spec, getattr(request, f"input_{index}")) for index, spec in enumerate(self.net.inputs)
        }
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    def finish(self, output: Any, request: Any) -> Any:
        if isinstance(output, dict):
            return output
        names = [spec.name for spec in self.net.outputs]
        if isinstance(output, tuple):  # a file that does not say how many it gives
            known = names if len(names) == len(output) else [f"output_{place}" for place in range(len(output))]
            return dict(zip(known, output, strict=True))
        return {names[0]: output}


def _item(spec: TensorSpec, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _checked(spec, value)
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype=np.dtype(spec.dtype))
    except (ValueError, TypeError, OverflowError):
        raise BadInput(f"not a rectangular list of {spec.dtype}", field=spec.name) from None
    _check_shape(spec, array)
    if array.dtype.kind == "f" and not (fits := np.isfinite(array)).all():  # JSON has no infinity: it was made here
        place = "".join(f"[{at}]" for at in np.argwhere(~fits)[0])
        raise BadInput(f"a number beyond what {spec.dtype} can hold", field=spec.name + place)
    return array


def _checked(spec: TensorSpec, array: Any) -> Any:
    """An array that came as such: its numbers are its sender's own, infinities among them."""
    dtype = "str" if array.dtype.kind == "U" else array.dtype.name
    if dtype != spec.dtype:
        raise BadInput(f"is {dtype}, the model takes {spec.dtype}", field=spec.name)
    _check_shape(spec, array)
    return array


def _check_shape(spec: TensorSpec, array: Any) -> None:
    if not spec.fits(array.shape):
        raise BadInput(f"has shape {list(array.shape)}, the model takes {_item_shape(spec)}", field=spec.name)


def _item_shape(spec: TensorSpec) -> str:
    return f"[{', '.join('any' if width is None else str(width) for width in spec.shape[1:])}]"


def zeros(spec: TensorSpec) -> Any:
    """One item for an input, as small as it may be."""
    shape = tuple(1 if size is None else size for size in spec.shape[1:])
    return np.zeros(shape, dtype=np.dtype(spec.dtype))


def _request_type(inputs: Sequence[TensorSpec]) -> type:
    # Input names such as "input.1" are no Python names, so fields are numbered and renamed in JSON.
    fields = [(f"input_{index}", _nested(spec)) for index, spec in enumerate(inputs)]
    rename = {f"input_{index}": spec.name for index, spec in enumerate(inputs)}
    return msgspec.defstruct("Inputs", fields, rename=rename)


def _reader(request: type, inputs: Sequence[TensorSpec]) -> Callable[[bytes], Any]:
    """Reads bodies; who sent one list too many is told that the batch dimension is not theirs to send."""
    decode: Callable[[Any], Any] = msgspec.json.Decoder(request).decode

    def read(body: bytes) -> Any:
        try:
            return read_json(decode, body)
        except RequestError as error:
            if error.field is not None and error.detail.endswith(", got 'array'"):
                shape = next((_item_shape(spec) for spec in inputs if error.field.startswith(spec.name)), "")
                cure = f"send one item of shape {shape}, without the batch dimension"
                raise BadInput(f"{error.detail}; {cure}", field=error.field) from None
            raise

    return read


def _nested(spec: TensorSpec) -> Any:
    kind = np.dtype(spec.dtype).kind
    scalar: Any = {"f": float, "i": int, "u": int, "b": bool}.get(kind, str)
    return reduce(lambda inner, _: list[inner], spec.shape[1:], scalar)  # type: ignore[valid-type]
