"""The server's own routes, but for those of the other files here: probes, metrics, documents and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from timebound.admission import Client
from timebound.catalogue import Catalogue
from timebound.errors import Refusal, RequestError
from timebound.http.access import CLIENT, Access, metrics_for
from timebound.http.openapi import openapi
from timebound.http.problems import MEDIA, headers_of, problem_body
from timebound.http.responses import json_response, problem_response, unchanged
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


class Shown(Protocol):
    """What the app shows of a gateway."""

    catalogue: Catalogue
    store: Store

    @property
    def has_handlers(self) -> bool: ...
    def status(self) -> dict[str, Any]: ...
    def why_not_ready(self) -> str | None: ...


class OwnRoutes:
    """What is not asked of a model: probes, metrics, documents and pages. `further` are other files' routes."""

    def __init__(
        self,
        served: Shown,
        access: Access | None,
        metrics: Callable[[str], tuple[bytes, str]],
        further: Sequence[BaseRoute],
        *,
        takes_feedback: bool,
    ) -> None:
        self._served = served
        self._models = served.catalogue.models
        self._access = access
        self._metrics = metrics
        self._further = further
        self._takes_feedback = takes_feedback

    def app(self) -> Starlette:
        """All of them."""
        routes = [
            # Before the paths of versions: none is called invoke.
            Route("/models/{model}/invoke", self._no_model, methods=["POST"]),
            Route("/models/{model}/invoke", _only_post, methods=["GET", "PUT", "DELETE"]),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics_page),
            Route("/v1/models", self._models_page),
            *self._further,
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

    def shows(self, scope: Scope, model: str) -> bool:
        """Whether who asks may know of a model."""
        return self._access is None or self._access.shows(scope, model)

    def _shown(self, request: HttpRequest) -> list[ModelInfo]:
        """The models that who asks may know of."""
        return [info for info in self._models.values() if self.shows(request.scope, info.base)]

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
        judged = {"reason": why, "takes_feedback": self._takes_feedback}
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
