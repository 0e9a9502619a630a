"""The live page's routes: what happens now as a stream, the last ten minutes, decisions, one request's budget."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope

from timebound.errors import Refusal, RequestError
from timebound.http.admin import Admin
from timebound.http.bounded import TRANSPORT
from timebound.http.responses import json_response

_MOST_LISTED = 500
_WAITING_BYTES = 8_192
"""Linux makes it twice as many; a message has about two thousand."""


class Stream(Protocol):
    """Who watches."""

    def has_room(self, whose: bytes) -> bool: ...
    def watch(self, whose: bytes) -> AsyncIterator[bytes]: ...


class Timeline(Protocol):
    """Batches on slots."""

    def trace(self) -> Iterator[list[dict[str, Any]]]: ...


class Drift(Protocol):
    """What models used to say, and whether they still do."""

    def report(self) -> list[dict[str, Any]]: ...
    def learn(self, model: str) -> bool: ...


class Versions(Protocol):
    """Versions side by side."""

    def report(self) -> list[dict[str, Any]]: ...


class Seen(Protocol):
    """What is gathered of a gateway."""

    @property
    def stream(self) -> Stream: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def drift(self) -> Drift: ...
    @property
    def versions(self) -> Versions: ...
    def past(self, model: str) -> dict[str, Any]: ...
    def decided(self, *, reason: str, model: str, request: str, most: int) -> list[dict[str, Any]]: ...
    def request(self, name: str) -> dict[str, Any] | None: ...


class LiveRoutes:
    """For the operator, and for who has a pass of his."""

    def __init__(self, seen: Seen, admin: Admin) -> None:
        self._seen = seen
        self._admin = admin

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/live", self._stream),
            Route("/v1/live/past", self._past),
            Route("/v1/live/decisions", self._decisions),
            Route("/v1/live/trace.json", self._trace),
            Route("/v1/live/requests/{id:path}", self._request),
            Route("/v1/live/drift", self._drift),
            Route("/v1/live/drift/{model}/learn", self._learn, methods=["POST"]),
            Route("/v1/live/versions", self._versions),
            Route("/v1/live/pass", self._pass, methods=["POST"]),
        ]

    async def _pass(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        return json_response({"pass": self._admin.passes.issue()})

    async def _stream(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        whose = b"" if self._admin.is_operators(request.scope) else self._admin.pass_of(request.scope)
        if not self._seen.stream.has_room(whose):
            raise Refusal("too many pages watch already; close one", code="too_many_watchers", retry_after_s=5)
        _narrow(request.scope)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._seen.stream.watch(whose), headers=headers, media_type="text/event-stream")

    async def _past(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        return json_response(self._seen.past(request.query_params.get("model", "")))

    async def _decisions(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        asked = {name: request.query_params.get(name, "") for name in ("reason", "model", "request")}
        return json_response({"decisions": self._seen.decided(**asked, most=_MOST_LISTED)})

    async def _trace(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        rows: list[dict[str, Any]] = []
        for some in self._seen.timeline.trace():
            rows += some
            await asyncio.sleep(0)  # others have their turn
        answer = json_response({"traceEvents": rows, "displayTimeUnit": "ms"})
        answer.headers["content-disposition"] = 'attachment; filename="timebound-batches.json"'
        return answer

    async def _drift(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        return json_response({"versions": self._seen.drift.report()})

    async def _versions(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        return json_response({"models": self._seen.versions.report()})

    async def _learn(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        model = request.path_params["model"]
        if not self._seen.drift.learn(model):
            raise RequestError(f"nothing is known of answers of {model!r} yet", code="not_found")
        return json_response({"learning": model}, 202)

    async def _request(self, request: HttpRequest) -> Response:
        self._admin.check_pass(request)
        found = self._seen.request(request.path_params["id"])
        if found is None:
            raise RequestError("no request of this id is among the last some thousand", code="not_found")
        return json_response(found)


def _narrow(scope: Scope) -> None:
    """Have little wait for this client in the system, which takes minutes of messages that nobody reads."""
    transport = scope.get(TRANSPORT)
    if transport is not None:  # there is none in another server
        transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WAITING_BYTES)
