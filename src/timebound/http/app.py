"""The ASGI app: the server's own routes, and models for callers that speak ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httptools
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from timebound.admission import Client, Held, Hold, Peers
from timebound.admission.held import SMALL
from timebound.catalogue import Catalogue
from timebound.errors import Refusal, RequestError
from timebound.http.access import CLIENT, Access, metrics_for
from timebound.http.control import Control
from timebound.http.cors import Cors, as_head
from timebound.http.history import HistoryRoutes
from timebound.http.intake import Intake
from timebound.http.live import LiveRoutes
from timebound.http.management import Management
from timebound.http.oip import OpenInferenceRoutes
from timebound.http.openapi import openapi
from timebound.http.problems import MEDIA, headers_of, problem_body, said
from timebound.http.proxies import Proxied, Proxies
from timebound.http.responses import json_response, problem_response, unchanged
from timebound.http.results import Results
from timebound.http.routes import Route as ModelRoute
from timebound.http.routes import Routes, find
from timebound.http.short import shortened
from timebound.http.surfaces import torchserve
from timebound.store.base import Store
from timebound.types import ModelInfo
from timebound.version import VERSION

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

_HANDLERS_PATHS = ("/predictions/", "/explanations/", "/models", "/invocations")

_SAFE = [(b"x-content-type-options", b"nosniff")]


class Shown(Protocol):
    """What the app shows of a gateway."""

    catalogue: Catalogue
    store: Store

    @property
    def has_handlers(self) -> bool: ...
    def status(self) -> dict[str, Any]: ...
    def why_not_ready(self) -> str | None: ...


class App:
    """What a listener runs, or another ASGI server; models are asked at their routes."""

    def __init__(
        self,
        intake: Intake,
        routes: Routes,
        served: Shown,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
        results: Results,
        control: Control,
        live: LiveRoutes | None = None,
        management: Management | None = None,
        history: HistoryRoutes | None = None,
        open_inference: OpenInferenceRoutes | None = None,
        access: Access | None = None,
        cors: Cors | None = None,
        held: Held | None = None,
        proxies: Proxies | None = None,
        peers: Peers | None = None,
        max_body: int = 10_000_000,
    ) -> None:
        self._intake = intake
        self._routes = routes.by_path
        self._served = served
        self._models = served.catalogue.models
        self._access = access
        self._cors = cors
        self._held = held
        self._proxies = proxies
        self._peers = peers or Peers(1)
        self._max_body = max_body
        self.is_watching = True
        """Whether it listens for clients that leave; an ASGI server that cancels instead saves it that."""
        self.unseen_s = 0.0
        """What a host takes of each limit, before a request is seen here and after it was answered."""
        self._metrics = metrics
        self._results = results
        self._control = control
        self._live = live
        self._management = management
        self._history = history
        self._open_inference = open_inference
        self._cold = self._cold_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"].encode())
        if route is None or route.takes_target:
            route = self._find(scope)
        asked = self._cors.preflight(scope["headers"]) if self._cors and scope["method"] == "OPTIONS" else None
        if asked is not None:
            await _respond(send, 204, as_head(asked), b"")
        elif route is not None and (scope["method"] == "POST" or scope["method"].encode() in route.methods):
            await self._answer(route, scope, receive, send)
        else:
            await self._answer_cold(route, scope, receive, self._with_headers(scope, send))

    def _find(self, scope: Scope) -> ModelRoute | None:
        url = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope.get("query_string")
        headers = list(scope["headers"])
        try:
            route = find(self._routes, url + b"?" + query if query else url, headers)
        except httptools.HttpParserError:
            return None
        if route is not None:
            scope["headers"] = headers
        return route

    async def _answer_cold(self, route: ModelRoute | None, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._access is not None:
                scope[CLIENT] = self._access.let_in(scope)
            if route is not None and self._shows(scope, route.model):
                raise RequestError("send a POST", code="method_not_allowed")
        except RequestError as error:
            response = problem_response(error, scope["path"])
            if error.code == "method_not_allowed":
                response.headers["allow"] = "POST"
            await response(scope, receive, send)
        else:
            await self._cold(scope, shortened(receive), send)

    async def _answer(self, route: ModelRoute, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to a model by ASGI: the same way in, the same bounds, and a client that leaves has left."""
        hold = self._held.hold() if self._held is not None else None
        try:
            client = self._access.client(scope) if self._access is not None else None
            body = await self._read(scope, receive, hold)
        except ClientDisconnect:
            return
        except RequestError as error:
            status, media, said_body = said(error, scope["path"].encode())
            head = b"content-type: %b\r\ncontent-length: %d\r\n" % (media, len(said_body))
            await _respond(send, status, head + as_head(headers_of(error)), said_body)
            return
        done: asyncio.Future[tuple[int, bytes, bytes]] = asyncio.get_running_loop().create_future()

        def respond(status: int, head: bytes, body: bytes) -> None:
            if not done.done():  # the caller may have been cancelled
                done.set_result((status, head, body))

        intake, address = self._way_in(scope)
        leave = intake.take(
            route, scope["headers"], body, respond, client=client, hold=hold, address=address, age_s=self.unseen_s
        )
        if not done.done():
            try:
                await (_first(done, _disconnected(receive)) if self.is_watching else done)
            finally:  # also for a caller who is cancelled
                if leave is not None and (not done.done() or done.cancelled()):
                    leave()
        if done.done():
            await _respond(send, *done.result())

    def _way_in(self, scope: Scope) -> tuple[Intake | Proxied, str]:
        """Where a request goes, and the address of who brings it."""
        peer = scope.get("client")
        address = None if peer is None else str(peer[0])
        if self._proxies is not None and self._proxies.trusts(address):
            return Proxied(self._intake, self._proxies, self._peers, peer=address or ""), ""
        return self._intake, address or ""

    async def _read(self, scope: Scope, receive: Receive, hold: Hold | None) -> bytes:
        parts, size, has_more = [], 0, True
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        self._check_size(int(told) if told.isdigit() else 0)
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part: bytes = message.get("body", b"")
            has_more = message.get("more_body", False)
            parts.append(part)
            size += len(part)
            self._check_size(size)
            if hold is not None and size > SMALL and not hold.reach(size):
                raise Refusal("too many large bodies are in memory now", code="memory_full", retry_after_s=1)
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise RequestError(f"the body is over {self._max_body} bytes", code="body_too_large")

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
            # Before the paths of versions: none is called invoke.
            Route("/models/{model}/invoke", self._no_model, methods=["POST"]),
            Route("/models/{model}/invoke", _only_post, methods=["GET", "PUT", "DELETE"]),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics_page),
            Route("/v1/models", self._models_page),
            *self._results.routes(),
            *self._control.routes(),
            *(self._live.routes() if self._live is not None else ()),
            *(self._management.routes() if self._management is not None else ()),
            *(self._history.routes() if self._history is not None else ()),
            *(self._open_inference.routes() if self._open_inference is not None else ()),
            Route("/v1/models/{model}/samples", self._samples),
            Route("/predictions/{model}", self._no_model, methods=["GET", "POST", "PUT"]),
            Route("/openapi.json", self._openapi),
            Route("/api-description", self._openapi),
            Route("/", self._openapi, methods=["OPTIONS"]),
            Route("/docs", _page("docs.html")),
            Route("/live", _page("live.html")),
            Route("/history", _page("history.html")),
            Route("/", _page("index.html")),
            Mount("/ui", _PageFiles(directory=UI)),
        ]
        handlers: Mapping[Any, Any] = {
            RequestError: self._on_refusal,
            HTTPException: self._on_http_error,
            ClientDisconnect: _on_leaving,
            Exception: _on_error,
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    def _shows(self, scope: Scope, model: str) -> bool:
        return self._access is None or self._access.shows(scope, model)

    def _shown(self, request: HttpRequest) -> list[ModelInfo]:
        """The models that who asks may know of."""
        return [info for info in self._models.values() if self._shows(request.scope, info.base)]

    def _why_not_ready(self, request: HttpRequest) -> str | None:
        """In full for the operator alone where there are API keys: how a worker ended names models and files."""
        reason = self._served.why_not_ready()
        is_whole = self._access is None or self._access.is_operators(request.scope)
        return reason if reason is None or is_whole else reason.partition(":")[0]

    async def _livez(self, request: HttpRequest) -> Response:
        return json_response({"status": "live"})

    async def _readyz(self, request: HttpRequest) -> Response:
        reason = self._why_not_ready(request)
        if reason is None:
            trouble = self._served.store.trouble
            return json_response({"status": "ready"} if trouble is None else {"status": "ready", "degraded": trouble})
        return json_response({"status": "not_ready", "reason": reason}, status=503)

    async def _metrics_page(self, request: HttpRequest) -> Response:
        client: Client | None = request.scope.get(CLIENT)
        # A client gets no exemplars: they name others' requests.
        body, media = self._metrics(request.headers.get("accept", "") if client is None else "")
        return Response(body if client is None else metrics_for(client, body), media_type=media)

    async def _models_page(self, request: HttpRequest) -> Response:
        status = self._served.status()
        shown = {info.name for info in self._shown(request)}
        why = self._why_not_ready(request)
        judged = {"reason": why, "takes_feedback": self._history is not None and self._history.is_kept}
        models = [{**model, **judged} for model in status["models"] if model["name"] in shown]
        return json_response({**status, "models": models, "version": VERSION})

    async def _openapi(self, request: HttpRequest) -> Response:
        return json_response(openapi(self._shown(request), VERSION, needs_key=self._access is not None))

    async def _samples(self, request: HttpRequest) -> Response:
        _check_model(request)
        info = self._models.get(request.path_params["model"])
        return await self._no_model(request) if info is None else unchanged(request, {"samples": info.samples})

    async def _no_model(self, request: HttpRequest) -> Response:
        _check_model(request)
        reason = self._why_not_ready(request)
        if reason is not None:
            raise _not_ready(reason)
        names = ", ".join(sorted(info.name for info in self._shown(request) if info.name == info.base))
        name = request.path_params["model"]
        detail = f"there is no model {name!r}; this server has: {names}"
        if self._served.has_handlers:  # the words that their clients look for
            detail = f"Model not found: {name}"
        raise RequestError(detail, code="unknown_model")

    async def _on_refusal(self, request: HttpRequest, error: RequestError) -> Response:
        return self._problem(error, request.url.path)

    def _problem(self, error: RequestError, path: str) -> Response:
        """An error, where handlers are asked in the words that their clients know."""
        is_theirs = path.startswith(_HANDLERS_PATHS) and self._served.has_handlers
        if not is_theirs:
            return problem_response(error, path)
        status, media, body = torchserve.said_error(error)
        headers = {name.decode(): value.decode() for name, value in headers_of(error)}
        return Response(body, status, headers, media_type=media.decode())

    async def _on_http_error(self, request: HttpRequest, error: HTTPException) -> Response:
        if error.status_code == 405:
            response = problem_response(
                RequestError(f"{request.method} is not taken here", code="method_not_allowed"), request.url.path
            )
            response.headers.update(error.headers or {})
            return response
        reason = self._served.why_not_ready()
        if error.status_code == 404 and reason == "loading" and request.method == "POST":
            return problem_response(
                _not_ready(reason), request.url.path
            )  # the model that will have this path may still be loading
        if error.status_code == 404:
            known = ", ".join(sorted(path for info in self._shown(request) for path in info.paths))
            is_hidden = not known and self._access is not None
            where = "" if is_hidden else f"; models answer at: {known or 'none yet'}"
            detail = f"nothing is at {request.url.path}{where}; see /docs"
            return self._problem(RequestError(detail, code="not_found"), request.url.path)
        return Response(problem_body("internal", error.detail), error.status_code, media_type=MEDIA.decode())


async def _only_post(request: HttpRequest) -> Response:
    raise HTTPException(405, headers={"allow": "POST"})


async def _first(done: asyncio.Future[Any], left: Coroutine[Any, Any, None]) -> None:
    """Wait for an answer, or for the client to leave."""
    watch = asyncio.ensure_future(left)
    try:
        await asyncio.wait((done, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    with suppress(Exception):  # a host that cannot be asked any more has lost its client too
        while (await receive())["type"] != "http.disconnect":
            pass


async def _respond(send: Send, status: int, head: bytes, body: bytes) -> None:
    lines = [line.partition(b": ") for line in head.split(b"\r\n") if line]
    headers = [*((name, value) for name, _, value in lines), *_SAFE]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _check_model(request: HttpRequest) -> None:
    """Who may not ask a model is not told either whether there is one of this name."""
    client: Client | None = request.scope.get(CLIENT)
    if client is not None:
        client.check_model(request.path_params["model"].partition("@")[0])


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


async def _on_leaving(request: HttpRequest, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _on_error(request: HttpRequest, error: Exception) -> Response:
    broken = RequestError("something broke in the server; its log has the details")
    return problem_response(broken, request.url.path)
