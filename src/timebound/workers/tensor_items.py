"""Tensors in, tensors out: a model's own request from an item's inputs, and an item's outputs from its answer.

A file takes arrays by the names of its inputs. A class takes inputs named after the fields of its `Request`, one
element for each item, or as many as a list has. What it answers becomes outputs: each field of a dict is one, any other
answer is the output `answer`. Numbers and lists of them are tensors of theirs, texts are BYTES, and everything else is
BYTES that hold its JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import nan, prod
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect

from timebound.backends.base import TensorSpec
from timebound.backends.file_model import FileModel
from timebound.body import read_json
from timebound.errors import BadInput
from timebound.model import Model
from timebound.reply import Reply
from timebound.request_type import filler, types_of
from timebound.tensors.arrays import array_of, datatype_of, elements, highest, values_of, written
from timebound.tensors.datatypes import BYTES, of_dtype
from timebound.tensors.item import MEDIA, Data, Head, Part, Wanted, head_of, pack, unpack
from timebound.types import Outcome, Tensor

PARAMETERS = "parameters"
"""The field of a class that is given what the client said besides and no other field is called."""
BODY, ANSWER = "body", "answer"
"""The input of a model that takes raw bodies, and the output of one that answers no dict."""

_SCALARS: dict[type, str] = {inspect.IntType: "INT64", inspect.FloatType: "FP64", inspect.BoolType: "BOOL"}
_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_RAW = (inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType)
_TEXTS = (
    inspect.StrType, inspect.EnumType, inspect.LiteralType, inspect.DateTimeType, inspect.DateType, inspect.TimeType,
    inspect.TimeDeltaType, inspect.UUIDType, inspect.DecimalType,
)  # fmt: skip


class Field(msgspec.Struct, frozen=True):
    """A field of a request as an input."""

    name: str
    datatype: str
    depth: int = 0
    """How deep its lists are."""
    is_raw: bool = False
    is_json: bool = False
    """Whether its BYTES hold JSON: no tensor can say such a value."""
    is_optional: bool = False

    @property
    def tensor(self) -> Tensor:
        return Tensor(self.name, self.datatype, [-1] * (1 + self.depth), self.is_optional)


class TensorItems:
    """One model's requests and answers as tensors."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._type = type(model).Request
        is_typed = self._type is not None and not isinstance(model, FileModel)
        self._fields = {field.name: field for field in _fields(self._type)} if is_typed else {}
        self._fill = filler(self._type, is_lax=type(model).lax) if is_typed else None
        self._declared: dict[str, str] = {}

    @property
    def inputs(self) -> list[Tensor]:
        """What it may be sent."""
        if isinstance(self._model, FileModel):
            return [_of_spec(spec) for spec in self._model.net.inputs]
        return [field.tensor for field in self._fields.values()] or [Tensor(BODY, BYTES, [-1])]

    def outputs(self, answer: Any) -> list[Tensor]:
        """What it gives, seen from one answer; later ones keep to these datatypes where they can."""
        if self._type is None:
            return [Tensor(ANSWER, BYTES, [-1])]
        found = [Tensor(name, *_seen(value)) for name, value in _by_name(answer).items()]
        if isinstance(self._model, FileModel):
            known = {spec.name: _of_spec(spec) for spec in self._model.net.outputs if spec.dtype}
            found = [known.get(tensor.name, tensor) for tensor in found]
        self._declared = {tensor.name: tensor.datatype for tensor in found}
        return found

    def request(self, body: Data) -> Any:
        """The model's own request; raises `RequestError` naming the input at fault."""
        head, data = unpack(body)
        if isinstance(self._model, FileModel):
            arrays = {part.name: array_of(part, own) for part, own in zip(head.parts, data, strict=True)}
            for spec in self._model.net.inputs:
                if spec.name not in arrays:
                    raise BadInput("comes as a parameter; a file takes it as an input", field=spec.name)
            return self._model.request_of(arrays)
        if self._fill is None:  # JSON without a type, as one text
            return read_json(msgspec.json.decode, elements(head.parts[0], data[0])[0])
        given: dict[str, Any] = {}
        if head.parameters:
            given = {name: value for name, value in head.parameters.items() if name in self._fields}
            if PARAMETERS in self._fields and PARAMETERS not in given:
                given[PARAMETERS] = {name: value for name, value in head.parameters.items() if name not in given}
        for part, own in zip(head.parts, data, strict=True):
            given[part.name] = _value(self._fields[part.name], part, own)
        return read_json(self._fill, given)  # type: ignore[arg-type]

    def outcome(self, answer: Any, body: Data) -> Outcome:
        """An answer as the outputs that were asked for."""
        head = head_of(body)
        named = _by_name(answer)
        wanted = {each.name: each for each in head.wanted} if head.wanted else {}
        made = [
            self._output(name, value, head, wanted.get(name))
            for name, value in named.items()
            if not wanted or name in wanted
        ]
        return Outcome(pack(Head([part for part, _ in made]), [data for _, data in made]), media=MEDIA)

    def _output(self, name: str, value: Any, head: Head, wanted: Wanted | None) -> tuple[Part, bytes]:
        is_binary = head.is_binary if wanted is None else wanted.is_binary
        if wanted is not None and wanted.classes:
            return written(name, BYTES, highest(name, value, wanted.classes), is_binary=is_binary)
        declared = self._declared.get(name)
        if declared == "FP64" and (value is None or type(value) is int):
            value = nan if value is None else float(value)
        datatype, plain = datatype_of(value)
        return written(name, datatype, plain, is_binary=is_binary)


def _of_spec(spec: TensorSpec) -> Tensor:
    shape = [-1, *(-1 if size is None else size for size in spec.shape[1:])]
    return Tensor(spec.name, of_dtype(spec.dtype), shape)


def _seen(value: Any) -> tuple[str, list[int]]:
    datatype, plain = datatype_of(value)
    if isinstance(plain, np.ndarray):
        is_fixed = isinstance(value, np.ndarray)
        return datatype, [-1, *(size if is_fixed else -1 for size in plain.shape)]
    return datatype, [-1, -1] if isinstance(plain, list) else [-1]


def _by_name(answer: Any) -> Mapping[str, Any]:
    """An answer's outputs: the fields of what has fields, else the one of a name that is always the same."""
    if isinstance(answer, Reply):  # tensors have a protocol of their own, with its headers
        return _by_name(answer.body)
    if isinstance(answer, dict) and answer and all(isinstance(name, str) for name in answer):
        return answer
    if isinstance(answer, msgspec.Struct):
        return msgspec.structs.asdict(answer)
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: getattr(answer, field.name) for field in fields(answer)}
    return {ANSWER: answer}


# ---------------------------------------------------------------------- the fields of a class


def _fields(request: Any) -> Sequence[Field]:
    return [_field(name, kind, is_optional=is_optional) for name, kind, is_optional in types_of(request)]


def _field(name: str, kind: inspect.Type, *, is_optional: bool) -> Field:
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        if len(others) == 1:
            return _field(name, others[0], is_optional=is_optional)
    if isinstance(kind, _LISTS):
        inner = _field(name, kind.item_type, is_optional=is_optional)
        if not inner.is_json:
            return msgspec.structs.replace(inner, depth=inner.depth + 1)
    if type(kind) in _SCALARS:
        return Field(name, _SCALARS[type(kind)], is_optional=is_optional)
    if isinstance(kind, _TEXTS):
        return Field(name, BYTES, is_optional=is_optional)
    if isinstance(kind, _RAW):
        return Field(name, BYTES, is_raw=True, is_optional=is_optional)
    return Field(name, BYTES, is_json=True, is_optional=is_optional)


def _value(field: Field, part: Part, data: Data) -> Any:
    """What an input gives for a field: its element, or nested lists of as many as it has."""
    if part.datatype == BYTES:
        flat = [_read(field, element) for element in elements(part, data)]
    else:
        flat = values_of(part, data)
    depth = len(part.shape) if field.is_json and part.datatype != BYTES and part.shape != [1] else field.depth
    if not depth:
        if len(flat) != 1:
            raise BadInput(f"has shape {part.shape} for each item, it takes one element", field=part.name)
        return flat[0]
    if len(part.shape) != depth:
        raise BadInput(f"has shape {part.shape} for each item, it takes {depth} dimensions", field=part.name)
    return _nested(flat, part.shape)


def _read(field: Field, element: bytes) -> Any:
    if field.is_raw:
        return element
    if field.is_json:
        return read_json(msgspec.json.decode, element)
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise BadInput("is no text in UTF-8", field=field.name) from None


def _nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return flat
    step = prod(shape[1:])
    return [_nested(flat[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]
