"""Requests of TensorFlow Serving and KServe's first protocol, cut into items: each is a body as the model takes it.

It runs in the gateway for small bodies, and for others in the process of `reading/`, which imports this file by its
name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from timebound.body import FirstLook, read_json
from timebound.errors import RequestError
from timebound.store.fingerprint import of_json
from timebound.tensors.asked import MOST_ITEMS
from timebound.tensors.given import Cut
from timebound.tensors.packing import unpacked
from timebound.tensors.request import Told
from timebound.types import ModelInfo

_OBJECT = ord("{")


class RowFacts(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a model to cut its requests."""

    schema: dict[str, Any] | None
    """None for raw bodies."""
    lone_input: str | None
    """The input that an instance is the value of, if it is no object."""
    key: str | None = None
    size_field: str | None = None
    key_ignore: list[str] = []
    is_list: bool = False
    """Whether a request is a bare list, in which each item fails by itself."""


class Rows(msgspec.Struct, array_like=True):
    """A request, cut."""

    items: list[Cut]
    is_columns: bool = False
    """Whether it came by columns, and is answered so."""


class _Request(msgspec.Struct):
    instances: list[msgspec.Raw] | None = None
    inputs: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Request).decode
_decode_columns = msgspec.json.Decoder(dict[str, list[msgspec.Raw]]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class RowReader:
    """Cuts the requests to one model."""

    def __init__(self, facts: RowFacts) -> None:
        self._facts = facts
        self._look: FirstLook | None = None
        if facts.schema is not None:
            self._look = FirstLook(
                ModelInfo(name="", request_schema=facts.schema, key=facts.key, size_field=facts.size_field)
            )
        self._is_any = facts.schema is not None and "properties" not in facts.schema and "$ref" not in facts.schema
        self._ignore = frozenset(facts.key_ignore)

    def read(self, told: Told, body: bytes) -> Rows:
        """The items of a request; raises `RequestError` that names what is wrong with it."""
        if told.encoding:
            body = unpacked(body, told.encoding, told.most)
        if not body:
            raise RequestError("the body is empty", code="empty_body")
        if self._facts.is_list:
            listed: list[msgspec.Raw] = read_json(_decode_list, body)
            _check_count(listed)
            return Rows([self._lenient(_raw(row) if self._look is None else bytes(row), told) for row in listed])
        request: _Request = read_json(_decode, body)
        is_columns = request.instances is None
        if is_columns and not memoryview(request.inputs):
            raise RequestError('the body has neither "instances" nor "inputs"', code="bad_input")
        if is_columns:
            bodies = self._columns(request.inputs)
        else:
            _check_count(request.instances or ())
            bodies = [self._row(each) for each in request.instances or ()]
        return Rows([self._item(each, told) for each in bodies], is_columns)

    def _row(self, row: msgspec.Raw) -> bytes:
        if self._look is None:
            return _raw(row)
        if self._is_any or memoryview(row)[0] == _OBJECT:
            return bytes(row)
        return self._object({self._lone(): row})

    def _columns(self, inputs: msgspec.Raw) -> list[bytes]:
        if memoryview(inputs)[0] != _OBJECT:
            rows: list[msgspec.Raw] = read_json(_decode_list, memoryview(inputs))
            _check_count(rows)
            return [self._row(row) for row in rows]
        if self._look is None:
            raise RequestError("the model has one input; send a list of texts", code="bad_input", field="inputs")
        columns: dict[str, list[msgspec.Raw]] = read_json(_decode_columns, memoryview(inputs))
        counts = {len(column) for column in columns.values()}
        if len(counts) != 1:
            raise RequestError("the inputs have different numbers of items", code="bad_input", field="inputs")
        _check_count(next(iter(columns.values())))
        return [
            self._object({name: column[place] for name, column in columns.items()}) for place in range(counts.pop())
        ]

    def _lone(self) -> str:
        if self._facts.lone_input is None:
            raise RequestError("the model has several inputs; send each instance as an object", code="bad_input")
        return self._facts.lone_input

    def _object(self, fields: dict[str, msgspec.Raw]) -> bytes:
        return msgspec.json.encode(fields)

    def _lenient(self, body: bytes, told: Told) -> Cut:
        """An item that the worker refuses, if it is wrong: the others have their answers."""
        try:
            return self._item(body, told)
        except RequestError:
            return Cut(body, None, 1.0, of_json(body, self._ignore) if told.needs_print else b"")

    def _item(self, body: bytes, told: Told) -> Cut:
        if self._look is None:
            return Cut(body)
        key, size = self._look.check(body)
        return Cut(body, key, size, of_json(body, self._ignore) if told.needs_print or key else b"")


def _check_count(items: Sequence[object]) -> None:
    if not 0 < len(items) <= MOST_ITEMS:
        raise RequestError(f"the request has {len(items)} items; send 1 to {MOST_ITEMS}", code="bad_input")


def _raw(row: msgspec.Raw) -> bytes:
    """A raw body: a text, or `{"b64": "..."}`."""
    value = read_json(msgspec.json.decode, memoryview(row))
    try:
        body = base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value.encode()
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        raise RequestError('an instance is a text or {"b64": "..."} here', code="bad_input") from None
    if not body:
        raise RequestError("an instance is empty", code="empty_body")
    return bytes(body)


def open_reader(facts: bytes) -> Any:
    """For the process that reads heavy bodies."""
    reader = RowReader(msgspec.msgpack.decode(facts, type=RowFacts))

    def read(told: bytes, body: bytes) -> bytes:
        return msgspec.msgpack.encode(reader.read(msgspec.msgpack.decode(told, type=Told), body))

    return read
