"""Answers of the server's own routes: JSON and problems."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from timebound.errors import RequestError
from timebound.http.problems import headers_of, said


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def problem_response(error: RequestError, path: str = "") -> Response:
    """An error as problem+json, or as the protocol of this path says it."""
    headers = {name.decode(): value.decode() for name, value in headers_of(error)}
    status, media, body = said(error, path.encode())
    return Response(body, status, headers, media_type=media.decode())
