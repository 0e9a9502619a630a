"""The Open Inference Protocol over HTTP beside inference: health, what models take and give, statistics, loading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.admission import Client
from timebound.errors import RequestError
from timebound.http.access import CLIENT, Access
from timebound.http.admin import Admin
from timebound.http.described import Described
from timebound.http.responses import json_response
from timebound.types import ModelInfo

UNSUPPORTED = ("classify", "regress", "explain")
"""What the first protocol has besides `predict`."""


class OpenInferenceRoutes:
    """What the protocol asks of a server besides inference."""

    def __init__(self, described: Described, admin: Admin, access: Access | None) -> None:
        self._described = described
        self._admin = admin
        self._access = access

    def routes(self) -> list[Route]:
        """What to mount."""
        one = {
            "": self._metadata,
            "/ready": self._model_ready,
            "/config": self._config,
            "/stats": self._stats,
        }
        rows: list[tuple[str, Callable[[HttpRequest], Awaitable[Response]], list[str]]] = [
            ("/v2", self._server, ["GET"]),
            ("/v2/health/live", self._live, ["GET"]),
            ("/v2/health/ready", self._ready, ["GET"]),
            ("/v2/models/stats", self._all_stats, ["GET"]),
            ("/v2/repository/index", self._index, ["GET", "POST"]),
            ("/v2/repository/models/{model}/load", self._load, ["POST"]),
            ("/v2/repository/models/{model}/unload", self._unload, ["POST"]),
        ]
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            rows += [(model + end, handle, ["GET"]) for end, handle in one.items()]
            rows.append((f"{model}/infer", self._no_infer, ["POST"]))
            first = model.replace("v2", "v1")
            rows.append((f"{first}:predict", self._no_infer, ["POST"]))
            rows += [(f"{first}:{verb}", self._no_verb, ["GET", "POST"]) for verb in UNSUPPORTED]
            rows.append((first, self._v1_status, ["GET"]))
        return [Route(path + slash, handle, methods=methods) for path, handle, methods in rows for slash in ("", "/")]

    # ------------------------------------------------------------------ the server

    async def _server(self, request: HttpRequest) -> Response:
        return json_response(self._described.server())

    async def _live(self, request: HttpRequest) -> Response:
        return json_response({"live": True, "ready": self._described.is_ready})

    async def _ready(self, request: HttpRequest) -> Response:
        is_ready = self._described.is_ready
        return json_response({"live": True, "ready": is_ready}, 200 if is_ready else 503)

    # ------------------------------------------------------------------ models

    async def _metadata(self, request: HttpRequest) -> Response:
        return json_response(self._described.metadata(self._asked(request)))

    async def _model_ready(self, request: HttpRequest) -> Response:
        info, is_ready = self._asked(request), self._described.is_ready
        return json_response({"name": info.base, "ready": is_ready}, 200 if is_ready else 503)

    async def _v1_status(self, request: HttpRequest) -> Response:
        """As TensorFlow Serving and KServe's first protocol tell it."""
        info, is_ready = self._asked(request), self._described.is_ready
        states = [
            {
                "version": version,
                "state": "AVAILABLE" if is_ready else "LOADING",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for version in self._described.versions(info.base)
        ]
        told = {"name": info.base, "ready": is_ready, "model_version_status": states}
        return json_response(told, 200 if is_ready else 503)

    async def _config(self, request: HttpRequest) -> Response:
        return json_response(self._described.config(self._asked(request)))

    async def _stats(self, request: HttpRequest) -> Response:
        return json_response({"model_stats": self._described.stats([self._asked(request)])})

    async def _all_stats(self, request: HttpRequest) -> Response:
        shown = self._described.shown(_client(request))
        if any(info.base == "stats" for info in shown):  # a model that is called so
            request.path_params["model"] = "stats"
            return await self._metadata(request)
        return json_response({"model_stats": self._described.stats(shown)})

    async def _no_infer(self, request: HttpRequest) -> Response:
        """A POST that no model's own route took: for a model that is not there, or not for who asks."""
        self._asked(request)
        raise RequestError("send a POST", code="method_not_allowed")

    async def _no_verb(self, request: HttpRequest) -> Response:
        self._asked(request)
        path, _, verb = request.url.path.rstrip("/").rpartition(":")
        raise RequestError(f":{verb} is not supported; send a POST to {path}:predict", code="not_found")

    def _asked(self, request: HttpRequest) -> ModelInfo:
        """The model that a path names; raises `RequestError`."""
        model, version = request.path_params["model"], request.path_params.get("version")
        if version == "0" and request.url.path.startswith("/v1/"):
            version = None
        return self._described.find(_client(request), model, version)

    # ------------------------------------------------------------------ the repository

    async def _index(self, request: HttpRequest) -> Response:
        only_ready = await _wants_ready(request)
        is_operators = self._access is None or self._access.is_operators(request.scope)
        return json_response(self._described.index(_client(request), is_operators=is_operators, only_ready=only_ready))

    async def _load(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        await self._described.load(request.path_params["model"])
        return json_response({})

    async def _unload(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        self._described.unload(request.path_params["model"])
        return json_response({})


def _client(request: HttpRequest) -> Client | None:
    """The holder of the API key; None for the operator, and where there are no keys."""
    client: Client | None = request.scope.get(CLIENT)
    return client


_MOST_OF_INDEX = 1_024
"""Bytes; it has one word to say."""


async def _wants_ready(request: HttpRequest) -> bool:
    """Whether only models that are ready are asked for, in the body of an index request."""
    body = await request.body()
    if len(body) > _MOST_OF_INDEX:
        raise RequestError(f"the body is over {_MOST_OF_INDEX} bytes; all it may say is ready", code="body_too_large")
    try:
        asked = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="malformed_json") from None
    return isinstance(asked, dict) and asked.get("ready") is True
