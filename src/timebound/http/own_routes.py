"""The server's own routes, but for those of the other files here: probes, metrics, documents and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from timebound.admission import Client
from timebound.errors import RequestError
from timebound.http.access import CLIENT, Access, metrics_for
from timebound.http.documents import Documents
from timebound.http.missing import Missing, Shown, check_model
from timebound.http.responses import json_response, problem_response, unchanged
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

_LONGEST_PATH = 255
"""Letters; no file of the pages has one half as long."""


class OwnRoutes:
    """What is not asked of a model: probes, metrics, documents and pages. `further` are other files' routes."""

    def __init__(
        self,
        served: Shown,
        access: Access | None,
        metrics: Callable[[str], tuple[bytes, str]],
        further: Sequence[BaseRoute],
        *,
        missing: Missing,
        takes_feedback: bool,
    ) -> None:
        self._served = served
        self._models = served.catalogue.models
        self._documents = Documents(needs_key=access is not None)
        self._metrics = metrics
        self._further = further
        self._missing = missing
        self._takes_feedback = takes_feedback

    def app(self) -> Starlette:
        """All of them."""
        routes = [
            # Before the paths of versions: none is called invoke.
            Route("/models/{model}/invoke", self._missing.no_model, methods=["POST"]),
            Route("/models/{model}/invoke", _only_post, methods=["GET", "PUT", "DELETE"]),
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics_page),
            Route("/v1/models", self._models_page),
            *self._further,
            Route("/v1/models/{model}/samples", self._samples),
            *self._missing.routes(),
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
            RequestError: self._missing.on_refusal,
            HTTPException: self._missing.on_http_error,
            ClientDisconnect: _on_leaving,
            Exception: _on_error,
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _livez(self, request: HttpRequest) -> Response:
        return json_response({"status": "live"})

    async def _readyz(self, request: HttpRequest) -> Response:
        reason = self._missing.why_not_ready(request)
        if reason is None:
            trouble = self._served.store.trouble
            return json_response({"status": "ready"} if trouble is None else {"status": "ready", "degraded": trouble})
        told = {"progress": progress} if (progress := self._served.progress) else {}
        return json_response({"status": "not_ready", "reason": reason, **told}, status=503)

    async def _metrics_page(self, request: HttpRequest) -> Response:
        client: Client | None = request.scope.get(CLIENT)
        # A client gets no exemplars: they name others' requests.
        body, media = self._metrics(request.headers.get("accept", "") if client is None else "")
        return Response(body if client is None else metrics_for(client, body), media_type=media)

    async def _models_page(self, request: HttpRequest) -> Response:
        status = self._served.status()
        shown = {info.name for info in self._missing.shown(request)}
        why = self._missing.why_not_ready(request)
        judged = {"reason": why, "takes_feedback": self._takes_feedback}
        models = [{**model, **judged} for model in status["models"] if model["name"] in shown]
        return json_response({**status, "models": models, "version": VERSION})

    async def _openapi(self, request: HttpRequest) -> Response:
        models = self._missing.shown(request)
        body = await self._documents.of(models, has_archives=self._served.has_handlers)
        return Response(body, media_type="application/json")

    async def _samples(self, request: HttpRequest) -> Response:
        check_model(request)
        info = self._models.get(request.path_params["model"])
        return await self._missing.no_model(request) if info is None else unchanged(request, {"samples": info.samples})


async def _only_post(request: HttpRequest) -> Response:
    raise HTTPException(405, headers={"allow": "POST"})


class _PageFiles(StaticFiles):
    """The pages' own files, with the same headers as the pages."""

    def get_path(self, scope: Scope) -> str:
        if len(scope["path"]) > _LONGEST_PATH:  # else it is taken apart, folder by folder
            raise HTTPException(404)
        return super().get_path(scope)

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
