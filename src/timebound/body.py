"""Reading JSON bodies, with errors in the client's terms; the gateway's first look and the worker's full one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from timebound.errors import RequestError


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
