"""What is made from a JSON Schema: values that fit it, and the type that the gateway looks at bodies with."""

from __future__ import annotations

import base64
import random
from typing import Annotated, Any

import msgspec


def follow(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, or what it refers to; one that is not there says nothing."""
    while "$ref" in schema:
        schema = defs.get(schema["$ref"].rsplit("/", 1)[1], {})
    return schema


def sample(schema: dict[str, Any], defs: dict[str, Any] | None = None) -> Any:
    """A small value that fits a JSON Schema: defaults and enums where given, empty or zero elsewhere."""
    defs = schema.get("$defs", {}) if defs is None else defs
    schema = follow(schema, defs)
    for given in ("default", "const"):
        if given in schema:
            return schema[given]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return sample(schema["anyOf"][0], defs)
    if schema.get("type") == "object":
        required = schema.get("required", [])
        return {name: sample(part, defs) for name, part in schema.get("properties", {}).items() if name in required}
    if schema.get("type") == "array":
        first = [sample(part, defs) for part in schema.get("prefixItems", [])]
        more = int(schema.get("minItems", 0)) - len(first)
        return first + [sample(schema.get("items") or {}, defs) for _ in range(more)]
    return {"string": "", "integer": 0, "number": 0.0, "boolean": False}.get(str(schema.get("type")))


# What is made up is as long or large as the schema allows, within these.
_MOST_LETTERS, _MOST_ITEMS, _LARGEST = 60, 8, 100


def made_up(schema: dict[str, Any], rng: random.Random, defs: dict[str, Any] | None = None) -> Any:
    """A value that fits a JSON Schema, another one each time; patterns and formats of texts are not kept to."""
    defs = schema.get("$defs", {}) if defs is None else defs
    schema = follow(schema, defs)
    if "const" in schema:
        return schema["const"]
    for choice in ("enum", "anyOf", "oneOf"):
        if schema.get(choice):
            chosen = rng.choice(schema[choice])
            return chosen if choice == "enum" else made_up(chosen, rng, defs)
    kind = str(schema.get("type"))
    if kind == "object":
        required = schema.get("required", [])
        parts = {name: part for name, part in schema.get("properties", {}).items() if name in required or _coin(rng)}
        return {name: made_up(part, rng, defs) for name, part in parts.items()}
    if kind == "array":
        first = [made_up(part, rng, defs) for part in schema.get("prefixItems", [])]
        more = _length(schema, "Items", _MOST_ITEMS, rng) - len(first)
        return first + [made_up(schema.get("items") or {"type": "number"}, rng, defs) for _ in range(more)]
    return _plain(schema, kind, rng)


def _plain(schema: dict[str, Any], kind: str, rng: random.Random) -> Any:
    if kind == "boolean":
        return _coin(rng)
    if kind in ("integer", "number"):
        return _number(schema, kind == "integer", rng)
    if kind == "string":
        length = _length(schema, "Length", _MOST_LETTERS, rng)
        if schema.get("contentEncoding") == "base64":
            return base64.b64encode(rng.randbytes(length)).decode()
        return "".join(rng.choices(_LETTERS, k=length))
    return None


# Words of about five letters.
_LETTERS = "abcdefghijklmnopqrstuvwxyz     "


def _length(schema: dict[str, Any], what: str, most: int, rng: random.Random) -> int:
    least = int(schema.get(f"min{what}", 1))
    longest = min(int(schema.get(f"max{what}", least + most)), least + most)
    return rng.randint(min(least, longest), longest)


def _number(schema: dict[str, Any], is_whole: bool, rng: random.Random) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None else min(0, high - _LARGEST)
    if high is None:
        high = low + _LARGEST
    if is_whole:
        return rng.randint(int(low) + ("exclusiveMinimum" in schema), int(high) - ("exclusiveMaximum" in schema))
    return round(rng.uniform(low + (high - low) / 1e4, high - (high - low) / 1e4), 4)


def _coin(rng: random.Random) -> bool:
    return rng.random() < 0.5


# ---------------------------------------------------------------------- a type for the gateway's first look

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


CHECKED_BY_WORKER = "x-timebound-checked-by-worker"
"""In a schema: its type converts what it gets, so only the type itself can say what is wrong."""


def attribute(name: str) -> str:
    """The attribute that holds a field of the body."""
    # Field names of a body need not be Python names; they are only ever looked up through this.
    return "field_" + name.encode().hex()


def top_level_type(schema: dict[str, Any]) -> Any:
    """What a decoder takes for bodies of this schema: scalars by their type, lists and objects as raw bytes."""
    definitions, is_for_worker = schema.get("$defs", {}), CHECKED_BY_WORKER in schema
    schema = follow(schema, definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        return msgspec.Raw
    required = schema.get("required", [])
    fields: list[Any] = []
    if is_for_worker:
        fields = [(attribute(name), msgspec.Raw, None) for name in schema["properties"]]
        return msgspec.defstruct("Body", fields, rename={attribute(name): name for name in schema["properties"]})
    for name, part in schema["properties"].items():
        kind = _kind(follow(part, definitions), definitions)
        is_tag = len(part.get("enum", ())) == 1  # decoders take a lone type without its tag
        is_required = name in required and not is_tag
        fields.append((attribute(name), kind) if is_required else (attribute(name), kind, None))
    rename = {attribute(name): name for name in schema["properties"]}
    forbid = schema.get("additionalProperties") is False
    return msgspec.defstruct("Body", fields, rename=rename, kw_only=True, forbid_unknown_fields=forbid)


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    if "anyOf" in schema:
        kinds = [_kind(follow(part, definitions), definitions) for part in schema["anyOf"]]
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
