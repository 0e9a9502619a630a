"""TorchServe's routes beside inference: health, the description of the API, and the management, for the operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.body import read_json
from timebound.catalogue import Catalogue
from timebound.config.options import MOST_WORKERS
from timebound.errors import RequestError, SetupError
from timebound.handlers.manifest import Registered
from timebound.handlers.registry import Registry, no_version
from timebound.handlers.store import LIST, Listed
from timebound.http.admin import Admin
from timebound.http.responses import json_response
from timebound.types import ModelInfo

log = logging.getLogger("timebound.http")

_MOST_LISTED = 100
_MOST_OF_WISH = 16_384
"""Bytes of JSON; it has some names and numbers to say."""
_read_wish = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode


class Managed(Protocol):
    """The gateway; what changes raises `SetupError` if nothing has changed."""

    catalogue: Catalogue

    @property
    def target(self) -> Path: ...
    def status(self) -> dict[str, Any]: ...
    def why_not_ready(self) -> str | None: ...
    async def reload(self) -> list[str]: ...
    async def scale(self, workers: int) -> None: ...


class Management:
    """What its clients ask of a server. Changes are for `timebound torchserve`, and made one at a time."""

    def __init__(self, served: Managed, admin: Admin) -> None:
        self._served = served
        self._admin = admin
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        """What to mount."""
        one = "/models/{model}"
        return [
            Route("/ping", self._ping, methods=["GET"]),
            Route("/models", self._list, methods=["GET"]),
            Route("/models", self._checked(self._register), methods=["POST"]),
            Route(one, self._describe, methods=["GET"]),
            Route(one, self._checked(self._scale), methods=["PUT"]),
            Route(one, self._checked(self._unregister), methods=["DELETE"]),
            Route(f"{one}/{{version}}", self._describe, methods=["GET"]),
            Route(f"{one}/{{version}}", self._checked(self._scale), methods=["PUT"]),
            Route(f"{one}/{{version}}", self._checked(self._unregister), methods=["DELETE"]),
            Route(f"{one}/{{version}}/set-default", self._checked(self._set_default), methods=["PUT"]),
        ]

    async def _ping(self, request: HttpRequest) -> Response:
        is_ready = self._served.why_not_ready() is None
        told = {"status": "Healthy" if is_ready else "Unhealthy", "live": True, "ready": is_ready}
        return json_response(told, 200 if is_ready else 503)

    # ------------------------------------------------------------------ what is there

    async def _list(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        names = self._served.catalogue.names
        asked = request.query_params
        start, limit = _number(asked, "next_page_token", 0), _number(asked, "limit", _MOST_LISTED)
        page = names[start : start + max(1, limit)]
        told: dict[str, Any] = {"models": [{"modelName": name, "modelUrl": self._url(name)} for name in page]}
        if start + len(page) < len(names):
            told["nextPageToken"] = str(start + len(page))
        return json_response(told)

    async def _describe(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        name, version = request.path_params["model"], request.path_params.get("version")
        return json_response([self._described(info) for info in self._found(name, version)])

    def _found(self, name: str, version: str | None) -> list[ModelInfo]:
        """The model's default version, the one that is named, or all; raises `RequestError` if there is none."""
        found = [info for info in self._served.catalogue.models.values() if info.base == name]
        if not found:
            raise RequestError(f"Model not found: {name}", code="unknown_model")
        if version is None:
            return [info for info in found if info.name == info.base] or found
        found = [info for info in found if version in (info.version, "all")]
        if not found:
            raise no_version(name, version)
        return found

    def _described(self, info: ModelInfo) -> dict[str, Any]:
        status = self._served.status()
        workers = [each for each in status["workers"] if each["role"] == "worker" and not each["is_leaving"]]
        return {
            "modelName": info.base,
            "modelVersion": info.version,
            "modelUrl": self._url(info.base, info.version),
            "runtime": "python",
            "minWorkers": len(workers),
            "maxWorkers": len(workers),
            "batchSize": info.max_batch,
            "maxBatchDelay": 0,
            "responseTimeout": info.deadline_s,
            "loadedAtStartup": True,
            "workers": [
                {
                    "id": str(each["worker"]),
                    "status": "READY" if each["is_up"] else "LOADING",
                    "memoryUsage": each.get("memory_bytes", 0),
                    "pid": each["pid"],
                    "gpu": False,
                }
                for each in workers
            ],
        }

    def _url(self, name: str, version: str | None = None) -> str:
        if self._served.target.suffix == LIST:
            for each in Registry(self._served.target).listed.models:
                if each.name == name and version in (None, each.version):
                    return each.file
        return self._served.target.name

    # ------------------------------------------------------------------ what changes it

    def _checked(self, act: Callable[[HttpRequest], Awaitable[Response]]) -> Callable[[HttpRequest], Any]:
        async def handle(request: HttpRequest) -> Response:
            self._admin.check(request)
            try:
                return await act(request)
            except SetupError as error:
                log.error("not changed, asked for by %s %s: %s", request.method, request.url.path, error)
                raise RequestError(str(error), code="reload_failed") from None

        return handle

    def _registry(self) -> Registry:
        if self._served.target.suffix != LIST:
            raise SetupError("this server has no model store; start it with: timebound torchserve --model-store FOLDER")
        return Registry(self._served.target)

    async def _switch(self, registry: Registry, listed: Listed) -> None:
        """Serve this list from now on; raises `SetupError`, and then the old one stands."""
        before = registry.listed
        registry.put(listed)
        try:
            await self._served.reload()
        except BaseException:
            registry.put(before)
            raise

    async def _register(self, request: HttpRequest) -> Response:
        asked = await _wish_of(request)
        if not asked.get("url"):
            raise RequestError("Parameter url is required.", code="bad_input")
        wish = Registered(
            file=asked["url"],
            name=asked.get("model_name"),
            handler=asked.get("handler"),
            batch_size=_number(asked, "batch_size", 0) or None,
            response_timeout=_number(asked, "response_timeout", 0) or None,
        )
        count = _number(asked, "initial_workers", 0)
        async with self._turn:
            registry = self._registry()
            listed, found = await asyncio.to_thread(registry.with_model, wish)
            await self._switch(registry, listed)
        told = f'Model "{found.name}" Version: {found.version} registered with {count} initial workers'
        if not count:
            told += ". Use scale workers API to add workers for the model."
        return json_response({"status": told})

    async def _unregister(self, request: HttpRequest) -> Response:
        name, version = request.path_params["model"], request.path_params.get("version")
        async with self._turn:
            registry = self._registry()
            await self._switch(registry, registry.without(name, version))
        return json_response({"status": f'Model "{name}" unregistered'})

    async def _set_default(self, request: HttpRequest) -> Response:
        name, version = request.path_params["model"], request.path_params["version"]
        async with self._turn:
            registry = self._registry()
            await self._switch(registry, registry.with_default(name, version))
        return json_response({"status": f'Default version successfully updated for model "{name}" to "{version}"'})

    async def _scale(self, request: HttpRequest) -> Response:
        name, wanted = request.path_params["model"], _number(request.query_params, "min_worker", 1)
        self._found(name, request.path_params.get("version") or request.query_params.get("model_version"))
        if wanted > MOST_WORKERS:
            raise RequestError(f"min_worker is {wanted}; it may be {MOST_WORKERS} at most", code="bad_input")
        if wanted < 1:
            detail = "a model without workers is not supported, for all workers hold all models; unregister it instead"
            raise RequestError(detail, code="bad_input")
        scaling = asyncio.create_task(self._scale_to(wanted))
        if request.query_params.get("synchronous", "").lower() == "true":
            await scaling
            return json_response({"status": f"Workers scaled to {wanted} for model: {name}"})
        self._tasks.add(scaling)
        scaling.add_done_callback(self._tasks.discard)
        scaling.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is logged
        return json_response({"status": "Processing worker updates..."}, 202)

    async def _scale_to(self, workers: int) -> None:
        async with self._turn:
            try:
                await self._served.scale(workers)
            except SetupError as error:
                log.error("not scaled: %s", error)
                raise


async def _wish_of(request: HttpRequest) -> Mapping[str, str]:
    """What a registration says: its query string, or a JSON object of the same words."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        return request.query_params
    body = await request.body()
    if not body.strip():
        return request.query_params
    if len(body) > _MOST_OF_WISH:
        raise RequestError(f"the body is over {_MOST_OF_WISH} bytes", code="body_too_large")
    said = read_json(_read_wish, body)
    return {name: value if isinstance(value, str) else str(value) for name, value in said.items() if value is not None}


def _number(asked: Mapping[str, str], name: str, usual: int) -> int:
    text = asked.get(name)
    if text is None:
        return usual
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(f"{name} is {text[:100]!r}; it must be a whole number", code="bad_input")
    return int(text)
