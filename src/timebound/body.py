"""Reading JSON bodies, with errors in the client's terms; the gateway's first look and the worker's full one.

Workers hold the full type of a body. The gateway looks first, at what can be seen without it: well-formed, fields
there, scalars of the right type. That spares the queue what is wrong, and reads the key. `FirstLook` is built from the
schema a worker sent, so the user's code is never imported. Lists and nested objects are scanned but not built: a large
tensor must not stall the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.schema import attribute, top_level_type
from timebound.types import ModelInfo


def read_json(decode: Callable[[Any], Any], body: bytes | memoryview) -> Any:
    """What `decode` makes of a body; raises `RequestError` naming the field and the cause."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="malformed_json") from None


_PLACE = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def _wrong_type(error: msgspec.ValidationError) -> RequestError:
    # msgspec says: Expected `str`, got `int` - at `$.image`. The first part may quote what the client sent.
    text = str(error)
    place = _PLACE.search(text)
    field = place[1].removeprefix(".") if place else ""
    text = text[: place.start()] if place else text
    missing = _MISSING.fullmatch(text)
    if missing:
        field = f"{field}.{missing[1]}" if field else missing[1]
    return RequestError(text.replace("`", "'"), code="bad_input", field=field or None)


class FirstLook:
    """Checks bodies of one model and reads their key and size."""

    def __init__(self, info: ModelInfo) -> None:
        self._decoder = msgspec.json.Decoder(top_level_type(info.request_schema or {}))
        self._key = info.key.split(".") if info.key else None
        self._size = info.size_field.split(".") if info.size_field else None

    def check(self, body: bytes) -> tuple[str | None, float]:
        """The request's key, if it has one, and its size; raises `RequestError` for what is wrong with the body."""
        fields = read_json(self._decoder.decode, body)
        if self._key is None and self._size is None:
            return None, 1.0
        key = _read(fields, self._key) if self._key else None
        size = _read(fields, self._size) if self._size else 1.0
        return (None if key is None or isinstance(key, dict | list) else str(key)), _length(size)


def _read(fields: Any, path: list[str]) -> Any:
    """The value at a dotted path of the body; None if it is not there."""
    value = getattr(fields, attribute(path[0]), None)
    if isinstance(value, msgspec.Raw):
        value = read_json(msgspec.json.decode, value)
    for part in path[1:]:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _length(value: Any) -> float:
    """How large a value is: a number itself, anything else by its length; never below one."""
    if isinstance(value, int | float):
        return float(max(1, min(value, 10**15)))  # JSON's whole numbers may be larger than any float, either way
    return max(1.0, float(len(value))) if isinstance(value, str | list | dict) else 1.0
