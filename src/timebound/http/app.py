"""The ASGI app: hot routes by one dictionary look-up, everything else through Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from timebound.admission import Held
from timebound.admission.held import SMALL
from timebound.errors import Refusal, RequestError
from timebound.http.control import Control
from timebound.http.cors import Cors, as_head
from timebound.http.guard import Guard
from timebound.http.hot import HotPath, problem
from timebound.http.hot import Route as HotRoute
from timebound.http.openapi import openapi
from timebound.http.problems import MEDIA, problem_body
from timebound.http.responses import json_response, problem_response
from timebound.http.results import CLIENT, Results
from timebound.types import ModelInfo

UI = Path(__file__).parent.parent / "ui"

# The pages need nothing from elsewhere; Swagger UI draws its icons from data: URLs.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

_SAFE = [(b"x-content-type-options", b"nosniff")]


class App:
    """What a listener runs. Models' routes appear when `serve` is called for them."""

    def __init__(
        self,
        hot: HotPath,
        *,
        status: Callable[[], dict[str, Any]],
        why_not_ready: Callable[[], str | None],
        metrics: Callable[[], tuple[bytes, str]],
        version: str,
        results: Results,
        control: Control,
        trouble: Callable[[], str | None],
        guard: Guard | None = None,
        cors: Cors | None = None,
        held: Held | None = None,
    ) -> None:
        self._hot = hot
        self._guard = guard
        self._cors = cors
        self._held = held
        self.hot_routes: dict[bytes, HotRoute] = {}
        self._models: dict[str, ModelInfo] = {}
        self._status = status
        self._why_not_ready = why_not_ready
        self._metrics = metrics
        self._version = version
        self._results = results
        self._control = control
        self._trouble = trouble
        self._cold = self._cold_app()

    def serve(self, info: ModelInfo) -> None:
        """Answer for this model at its routes from now on."""
        if info.name in self._models:
            self.stop_serving(info.name)  # its path may be another one now
        route = HotRoute(info)
        self._models[info.name] = info
        for path in info.paths:
            self.hot_routes[path.encode()] = route
        self.hot_routes[info.version_path.encode()] = HotRoute(info, is_version=True)

    def stop_serving(self, name: str) -> None:
        """Answer no more for this model."""
        info = self._models.pop(name)
        for path in {*info.paths, info.version_path}:
            self.hot_routes.pop(path.encode(), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.hot_routes.get(scope["path"].encode())
        asked = self._cors.preflight(scope["headers"]) if self._cors and scope["method"] == "OPTIONS" else None
        if asked is not None:
            await _respond(send, 204, as_head(asked), b"")
        elif route is not None and scope["method"] == "POST":
            await self._answer(route, scope, receive, send)
        else:
            await self._answer_cold(route, scope, receive, self._with_headers(scope, send))

    async def _answer_cold(self, route: HotRoute | None, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._guard is not None:
                scope[CLIENT] = self._guard.let_in(scope)
            if route is not None:
                raise RequestError("send a POST", code="method_not_allowed")
        except RequestError as error:
            response = problem_response(error)
            if error.code == "method_not_allowed":
                response.headers["allow"] = "POST"
            await response(scope, receive, send)
        else:
            await self._cold(scope, receive, send)

    async def _answer(self, route: HotRoute, scope: Scope, receive: Receive, send: Send) -> None:
        """The hot path for requests that come as ASGI: pipelined ones, and those of another ASGI server."""
        hold = self._held.hold() if self._held is not None else None
        parts, size = [], 0
        try:
            client = self._guard.client(scope) if self._guard is not None else None
            async for part in HttpRequest(scope, receive).stream():
                parts.append(part)
                size += len(part)
                if hold is not None and size > SMALL and not hold.reach(size):
                    raise Refusal("too many large bodies are in memory now", code="memory_full", retry_after_s=1)
        except ClientDisconnect:
            return
        except RequestError as error:
            await _respond(send, *problem(error))
            return
        done: asyncio.Future[tuple[int, bytes, bytes]] = asyncio.get_running_loop().create_future()
        body = b"".join(parts)
        self._hot.start(
            route, scope["headers"], body, lambda *answer: done.set_result(answer), client=client, hold=hold
        )
        await _respond(send, *await done)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        """The same `send`, adding what every answer of the server's own routes says."""
        more = [*_SAFE, *(self._cors.lines(scope["headers"]) if self._cors is not None else [])]

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(line for line in more if line[0] not in known)]
            await send(message)

        return send_with

    def _cold_app(self) -> Starlette:
        routes = [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics_page),
            Route("/v1/models", self._models_page),
            *self._results.routes(),
            *self._control.routes(),
            Route("/v1/models/{model}/samples", self._samples),
            Route("/predictions/{model}", self._no_model, methods=["GET", "POST"]),
            Route("/openapi.json", self._openapi),
            Route("/docs", _page("docs.html")),
            Route("/", _page("index.html")),
            Mount("/ui", _PageFiles(directory=UI)),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: self._on_http_error, Exception: _on_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _livez(self, request: HttpRequest) -> Response:
        return json_response({"status": "live"})

    async def _readyz(self, request: HttpRequest) -> Response:
        reason = self._why_not_ready()
        if reason is None:
            trouble = self._trouble()
            return json_response({"status": "ready"} if trouble is None else {"status": "ready", "degraded": trouble})
        return json_response({"status": "not_ready", "reason": reason}, status=503)

    async def _metrics_page(self, request: HttpRequest) -> Response:
        body, media = self._metrics()
        return Response(body, media_type=media)

    async def _models_page(self, request: HttpRequest) -> Response:
        return json_response(self._status())

    async def _openapi(self, request: HttpRequest) -> Response:
        return json_response(openapi(list(self._models.values()), self._version, needs_key=self._guard is not None))

    async def _samples(self, request: HttpRequest) -> Response:
        info = self._models.get(request.path_params["model"])
        return await self._no_model(request) if info is None else json_response({"samples": info.samples})

    async def _no_model(self, request: HttpRequest) -> Response:
        reason = self._why_not_ready()
        if reason is not None:
            return problem_response(_not_ready(reason))
        names = ", ".join(sorted(name for name in self._models if "@" not in name))
        name = request.path_params["model"]
        return problem_response(
            RequestError(f"there is no model {name!r}; this server has: {names}", code="unknown_model")
        )

    async def _on_http_error(self, request: HttpRequest, error: HTTPException) -> Response:
        if error.status_code == 405:
            response = problem_response(RequestError(f"{request.method} is not taken here", code="method_not_allowed"))
            response.headers.update(error.headers or {})
            return response
        reason = self._why_not_ready()
        if error.status_code == 404 and reason == "loading" and request.method == "POST":
            return problem_response(_not_ready(reason))  # the model that will have this path may still be loading
        if error.status_code == 404:
            known = ", ".join(sorted(path for info in self._models.values() for path in info.paths)) or "none yet"
            detail = f"nothing is at {request.url.path}; models answer at: {known}; see /docs"
            return problem_response(RequestError(detail, code="not_found"))
        return Response(problem_body("internal", error.detail), error.status_code, media_type=MEDIA.decode())


async def _respond(send: Send, status: int, head: bytes, body: bytes) -> None:
    lines = [line.partition(b": ") for line in head.split(b"\r\n") if line]
    headers = [*((name, value) for name, _, value in lines), *_SAFE]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _not_ready(reason: str) -> Refusal:
    return Refusal(f"the server is not ready: {reason}", code="not_ready", retry_after_s=1)


class _PageFiles(StaticFiles):
    """The pages' own files, with the same headers as the pages."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(_PAGE_HEADERS)
        return response


def _page(name: str) -> Callable[[HttpRequest], Any]:
    async def page(request: HttpRequest) -> Response:
        return FileResponse(UI / name, headers=_PAGE_HEADERS)

    return page


async def _on_error(request: HttpRequest, error: Exception) -> Response:
    return problem_response(RequestError("something broke in the server; its log has the details"))
