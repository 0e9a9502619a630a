"""A first look at a JSON body in the gateway: well-formed, fields there, scalars of the right type.

Workers hold the full type and check it too; this check spares the queue what can be seen to be wrong, and
reads the key. It is built from the schema a worker sent, so the user's code is never imported here. Lists and
nested objects are scanned but not built: a large tensor must not stall the event loop.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from timebound.body import read_json
from timebound.types import ModelInfo

_SCALARS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_LIMITS = {
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}


class Shape:
    """Checks bodies of one model and reads their key and size."""

    def __init__(self, info: ModelInfo) -> None:
        self._decoder = msgspec.json.Decoder(_top_level(info.request_schema or {}))
        self._key = info.key.split(".") if info.key else None
        self._size = info.size_field.split(".") if info.size_field else None

    def check(self, body: bytes) -> tuple[str | None, float]:
        """The request's key, if it has one, and its size; raises `RequestError` for what is wrong with the body."""
        fields = read_json(self._decoder.decode, body)
        key = _read(fields, self._key) if self._key else None
        size = _read(fields, self._size) if self._size else 1.0
        return (None if key is None or isinstance(key, dict | list) else str(key)), _length(size)


def _read(fields: Any, path: list[str]) -> Any:
    """The value at a dotted path of the body; None if it is not there."""
    value = getattr(fields, _attribute(path[0]), None)
    if isinstance(value, msgspec.Raw):
        value = read_json(msgspec.json.decode, value)
    for part in path[1:]:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _length(value: Any) -> float:
    """How large a value is: a number itself, anything else by its length; never below one."""
    if isinstance(value, int | float):
        return max(1.0, float(min(value, 10**15)))  # JSON's whole numbers may be larger than any float
    return max(1.0, float(len(value))) if isinstance(value, str | list | dict) else 1.0


def _attribute(name: str) -> str:
    # Field names of a body need not be Python names; they are only ever looked up through this.
    return "field_" + name.encode().hex()


def _top_level(schema: dict[str, Any]) -> Any:
    definitions = schema.get("$defs", {})
    schema = _follow(schema, definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        return msgspec.Raw
    required = schema.get("required", [])
    fields: list[Any] = []
    for name, part in schema["properties"].items():
        kind = _kind(_follow(part, definitions), definitions)
        is_tag = len(part.get("enum", ())) == 1  # decoders take a lone type without its tag
        is_required = name in required and not is_tag
        fields.append((_attribute(name), kind) if is_required else (_attribute(name), kind, None))
    rename = {_attribute(name): name for name in schema["properties"]}
    forbid = schema.get("additionalProperties") is False
    return msgspec.defstruct("Body", fields, rename=rename, kw_only=True, forbid_unknown_fields=forbid)


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    if "anyOf" in schema:
        kinds = [_kind(_follow(part, definitions), definitions) for part in schema["anyOf"]]
        if msgspec.Raw in kinds:
            return msgspec.Raw
        union = kinds[0]
        for kind in kinds[1:]:
            union = union | kind
        return union
    name = schema.get("type")
    if name not in _SCALARS or "enum" in schema or "format" in schema or "contentEncoding" in schema:
        return msgspec.Raw
    limits = {_LIMITS[limit]: value for limit, value in schema.items() if limit in _LIMITS}
    return Annotated[_SCALARS[name], msgspec.Meta(**limits)] if limits else _SCALARS[name]


def _follow(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    return schema
