"""Answers of the server's own routes: JSON and problems."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from timebound.errors import RequestError
from timebound.http.problems import MEDIA, from_error, headers_of, status_of


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def problem_response(error: RequestError) -> Response:
    """An error as problem+json."""
    headers = {name.decode(): value.decode() for name, value in headers_of(error)}
    return Response(from_error(error), status_of(error.code), headers, media_type=MEDIA.decode())
