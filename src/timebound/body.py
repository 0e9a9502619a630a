"""Reading JSON bodies, with errors in the client's terms; the gateway's first look and the worker's full one."""

from __future__ import annotations

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


def _wrong_type(error: msgspec.ValidationError) -> RequestError:
    # msgspec says: Expected `str`, got `int` - at `$.image`
    text, _, path = str(error).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    if "missing required field" in text:
        missing = text.split("`")[1]
        field = f"{field}.{missing}" if field else missing
    return RequestError(text.replace("`", "'"), code="bad_input", field=field or None)
