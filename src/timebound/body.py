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


MAX_DEPTH = 100
"""Levels of nesting that a model's code can be expected to follow; Python's own functions call themselves per level."""

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.S)


def is_too_deep(body: bytes | memoryview) -> bool:
    """Whether a JSON body is nested deeper than `MAX_DEPTH`. Slow: for bodies that were too much for somebody."""
    depth = 0
    for character in _TEXTS.sub(b"", body):
        if character in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif character in b"]}":
            depth -= 1
    return False


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
