"""Forms and query strings as bodies: each field by the type that the model's schema gives it.

A form for a model that takes raw bodies is its one file. Small ones are read in the gateway; others in the process of
`reading/`, which imports this file by its name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from timebound.body import FirstLook
from timebound.errors import BadInput, RequestError
from timebound.form import Field, read_form
from timebound.schema import follow
from timebound.store.fingerprint import of_bytes, of_json
from timebound.types import Body, ModelInfo

_ANY: dict[str, Any] = {}
_TRUE, _FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no", "")


class FormFacts(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a model to read its forms."""

    schema: dict[str, Any] | None
    """None for raw bodies."""
    key: str | None = None
    size_field: str | None = None
    key_ignore: list[str] = []


class Filled(msgspec.Struct, array_like=True, frozen=True):
    """A body as the model takes it, and what the gateway has to know of it."""

    body: bytes
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""


class Told(msgspec.Struct, array_like=True, frozen=True):
    """What the headers say of a form."""

    media: bytes
    needs_print: bool = False


def facts_of(info: ModelInfo) -> FormFacts:
    """What a reader of its forms needs."""
    schema = (info.request_schema or {}) if info.body is Body.JSON else None
    return FormFacts(schema, info.key, info.size_field, info.key_ignore)


def open_reader(facts: bytes) -> Callable[[bytes, bytes], bytes]:
    """The reader for one model's forms, as `reading/` wants it."""
    reader = FormReader(msgspec.msgpack.decode(facts, type=FormFacts))

    def read(told: bytes, body: bytes) -> bytes:
        return msgspec.msgpack.encode(reader.read(msgspec.msgpack.decode(told, type=Told), body))

    return read


class FormReader:
    """Makes bodies of the forms that are sent to one model."""

    def __init__(self, facts: FormFacts) -> None:
        self._ignore = frozenset(facts.key_ignore)
        self._defs: dict[str, Any] = {}
        self._known: dict[int, set[str]] = {}  # by what is part of the schema, which stays, or `_ANY`
        self._fields: dict[str, Any] = {}
        self._required: frozenset[str] = frozenset()
        self._ignores_others = self._ignores_files = False
        self._look: FirstLook | None = None
        if facts.schema is not None:
            self._defs = facts.schema.get("$defs", {})
            schema = follow(facts.schema, self._defs)
            self._fields, self._required = schema.get("properties", {}), frozenset(schema.get("required", ()))
            self._ignores_others = "title" in schema  # it is a class's, and not that of any JSON
            self._ignores_files = self._ignores_others and "additionalProperties" not in schema
            info = ModelInfo(name="", request_schema=facts.schema, key=facts.key, size_field=facts.size_field)
            self._look = FirstLook(info)

    def read(self, told: Told, body: bytes) -> Filled:
        """A form's body; raises `RequestError` that says what is wrong with it."""
        if body.lstrip()[:1] in (b"{", b"[") and not told.media.startswith(b"multipart"):
            detail = "this is JSON, sent as a form; send it with the header content-type: application/json"
            raise RequestError(detail, code="unsupported_media_type")
        return self.fill(read_form(told.media, body), needs_print=told.needs_print)

    def fill(self, given: Iterable[Field], *, needs_print: bool = False) -> Filled:
        """The body that fields make."""
        if self._look is None:
            file = _lone_file(list(given))
            return Filled(file, fingerprint=of_bytes(file) if needs_print else b"")
        values: dict[str, Any] = {}
        for field in self._named(list(given)):
            self._put(values, field)
        body = msgspec.json.encode(values)
        key, size = self._look.check(body)
        return Filled(body, key, size, of_json(body, self._ignore) if needs_print or key else b"")

    def _named(self, given: list[Field]) -> list[Field]:
        """With the one file of a form in the one field that takes a file, whatever the client called it."""
        files = [field for field in given if field.filename is not None]
        named = {field.name for field in given}
        free = [name for name, schema in self._fields.items() if name not in named and self._takes_file(schema)]
        if len(files) == 1 and len(free) == 1 and files[0].name not in self._fields:
            return [msgspec.structs.replace(field, name=free[0]) if field is files[0] else field for field in given]
        return given

    def _put(self, values: dict[str, Any], field: Field) -> None:
        schema, name = self._fields.get(field.name, _ANY), field.name
        if self._ignores_files and field.filename is not None and name not in self._fields:
            return  # the class would leave it out, and 20 MB of zeros are 120 MB of JSON to be written and read
        kinds = self._kinds(schema)
        if not field.value and field.filename is None and name not in self._required and self._is_left_out(schema):
            return
        if "array" in kinds:
            text = field.value.lstrip()[:1]
            if text == b"[" and field.filename is None and name not in values:
                values[name] = self._json(field)
                return
            items = next((part.get("items") or _ANY for part in self._choices(schema) if "items" in part), _ANY)
            values.setdefault(name, []).append(self._value(field, items))
        elif name in values and self._ignores_others and name not in self._fields:
            return
        elif name in values:
            raise BadInput("is given more than once", field=name)
        else:
            values[name] = self._value(field, schema)

    def _is_left_out(self, schema: dict[str, Any]) -> bool:
        """Whether an empty text stands for no value: a browser sends one for a box that was not filled in."""
        if "array" in (kinds := self._kinds(schema)):
            kinds = self._kinds(next((part["items"] for part in self._choices(schema) if part.get("items")), _ANY))
        return bool(kinds) and not kinds & {"string", "boolean"}

    def _value(self, field: Field, schema: dict[str, Any]) -> Any:
        kinds = self._kinds(schema)
        if field.filename is not None and self._takes_file(schema):
            return base64.b64encode(field.value).decode()
        try:
            text = field.value.decode()
        except UnicodeDecodeError:
            raise BadInput("is no text in UTF-8", field=field.name) from None
        if not text and "null" in kinds and "string" not in kinds:
            return None
        if "string" in kinds or not kinds:
            return text
        if "boolean" in kinds and text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        return self._json(field)

    def _json(self, field: Field) -> Any:
        """What a text says as JSON; else the text itself, and the type says what is wrong with it."""
        try:
            return msgspec.json.decode(field.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return field.value.decode("utf-8", "replace")

    def _choices(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        schema = follow(schema, self._defs)
        parts = schema.get("anyOf") or [schema]
        return [follow(part, self._defs) for part in parts]

    def _kinds(self, schema: dict[str, Any]) -> set[str]:
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = self._found_kinds(schema)
        return known

    def _found_kinds(self, schema: dict[str, Any]) -> set[str]:
        kinds: set[str] = set()
        for part in self._choices(schema):
            if isinstance(kind := part.get("type"), str):
                kinds.add(kind)
            elif "enum" in part or "const" in part:
                choices = part.get("enum", [part.get("const")])
                kinds.add("string" if any(isinstance(choice, str) for choice in choices) else "number")
        return kinds

    def _takes_file(self, schema: dict[str, Any]) -> bool:
        return any("contentEncoding" in part or part.get("format") == "binary" for part in self._choices(schema))


def _lone_file(given: list[Field]) -> bytes:
    files = [field for field in given if field.filename is not None] or given
    if len(files) != 1:
        raise BadInput(f"the form has {len(files)} files, and the model takes one: send it as the only file")
    if not files[0].value:
        raise RequestError("the file in the form is empty", code="empty_body")
    return files[0].value
