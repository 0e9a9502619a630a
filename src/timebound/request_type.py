"""What `Request` may be: a msgspec Struct, a dataclass or a pydantic model; how each is described and filled.

pydantic is never imported: whoever wrote such a class has done that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import msgspec
from msgspec import inspect

from timebound.errors import RequestError
from timebound.schema import CHECKED_BY_WORKER, follow

Read = Callable[[Any], Any]
"""Makes a request of a body; raises `msgspec.ValidationError` or `RequestError`."""


def is_pydantic(kind: Any) -> bool:
    """Whether it is a class derived from pydantic's BaseModel."""
    bases = kind.__mro__ if isinstance(kind, type) else ()
    return any(base.__name__ == "BaseModel" and base.__module__.startswith("pydantic.") for base in bases)


def is_request_type(kind: Any) -> bool:
    """Whether `Request` may be this."""
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind) or is_pydantic(kind))


def schema_of(kind: Any, *, is_lax: bool = False) -> dict[str, Any]:
    """Its JSON Schema, with its parts under `$defs`; raises `TypeError` for what JSON cannot fill."""
    if is_pydantic(kind):  # it converts as it likes
        return {**kind.model_json_schema(), CHECKED_BY_WORKER: True}
    schema = dict(msgspec.json.schema(kind))
    return {**schema, CHECKED_BY_WORKER: True} if is_lax else schema


def fields_of(kind: Any) -> list[str]:
    """The names of its fields as a body has them."""
    schema = schema_of(kind)
    return list(follow(schema, schema.get("$defs", {})).get("properties", ()))


def types_of(kind: Any) -> Iterator[tuple[str, inspect.Type, bool]]:
    """Its fields by name: the type of each, and whether it may be left out."""
    if is_pydantic(kind):
        for name, field in kind.model_fields.items():
            yield field.alias or name, inspect.type_info(field.annotation), not field.is_required()
        return
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType | inspect.DataclassType)
    for each in info.fields:
        yield each.encode_name, each.type, not each.required


def reader(kind: Any, *, is_lax: bool = False) -> Read:
    """Reads a JSON body."""
    if is_pydantic(kind):
        return lambda body: _validated(kind.model_validate_json, bytes(body))
    return msgspec.json.Decoder(kind, strict=not is_lax).decode


def filler(kind: Any, *, is_lax: bool = False) -> Callable[[Mapping[str, Any]], Any]:
    """Makes a request of values by the names of its fields."""
    if is_pydantic(kind):
        return lambda values: _validated(kind.model_validate, values)
    return lambda values: msgspec.convert(values, kind, strict=not is_lax)


def _validated(validate: Callable[[Any], Any], given: Any) -> Any:
    try:
        return validate(given)
    except ValueError as error:
        told: Any = getattr(error, "errors", None)
        if told is None:
            raise RequestError("the input cannot be used", code="bad_input") from None
        first = told(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        raise RequestError(f"the body is not valid JSON: {first['msg']}", code="malformed_json")
    field = ".".join(str(part) for part in first["loc"])
    raise RequestError(first["msg"], code="bad_input", field=field or None)
