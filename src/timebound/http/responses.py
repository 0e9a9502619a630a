"""Answers of the server's own routes: JSON and problems."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from timebound.errors import RequestError
from timebound.http.problems import headers_of, said


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def unchanged(request: HttpRequest, value: Any) -> Response:
    """A value as JSON for a browser that may keep it: it asks again, and is told if it has it already."""
    body = msgspec.json.encode(value)
    headers = {"etag": f'"{blake2b(body, digest_size=12).hexdigest()}"', "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def problem_response(error: RequestError, path: str = "") -> Response:
    """An error as problem+json, or as the protocol of this path says it."""
    headers = {name.decode(): value.decode() for name, value in headers_of(error)}
    status, media, body = said(error, path.encode())
    return Response(body, status, headers, media_type=media.decode())
