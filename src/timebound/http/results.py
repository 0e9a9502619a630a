"""Results by key over HTTP: read one, list them, forget them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.errors import RequestError
from timebound.http.admin import Admin
from timebound.http.problems import MEDIA, from_error, status_of
from timebound.store.base import Store, Stored

_MOST_LISTED = 10_000

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Results:
    """The routes under /v1/results. Reading one by its key is for everyone, the rest for the operator."""

    def __init__(self, store: Store, is_running: Callable[[str, str], bool], admin: Admin) -> None:
        self._store = store
        self._is_running = is_running
        self._admin = admin

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/results", _safely(self._many), methods=["GET", "DELETE"]),
            Route("/v1/results/{model}", _safely(self._many), methods=["GET", "DELETE"]),
            Route("/v1/results/{model}/{key:path}", _safely(self._one), methods=["GET", "DELETE"]),
        ]

    async def _one(self, request: HttpRequest) -> Response:
        model, key = request.path_params["model"], request.path_params["key"]
        if request.method == "DELETE":
            self._admin.check(request)
            return _json({"cleared": await self._store.clear(model, key)})
        found = await self._store.read((model, key))
        if isinstance(found, Stored):
            return _answer(found)
        if found is not None or self._is_running(model, key):
            return Response(b'{"state":"running"}', 202, {"retry-after": "1"}, media_type="application/json")
        raise RequestError(
            f"no result of {model!r} is kept under the key {key!r}; it was never finished, or its time is over",
            code="no_result",
        )

    async def _many(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        model = request.path_params.get("model")
        if request.method == "DELETE":
            return _json({"cleared": await self._store.clear(model)})
        found: list[Any] = []
        async for entry in self._store.entries(model):
            found.append(entry)
            if len(found) == _MOST_LISTED:
                break
        return _json({"results": found, "is_complete": len(found) < _MOST_LISTED})


def _answer(stored: Stored) -> Response:
    result = stored.result
    headers = {
        "timebound-quality": result.quality.value,
        "timebound-members": f"{result.members}/{result.of_members}",
        "timebound-source": "stored",
        "timebound-finished-at": f"{stored.at:.3f}",
        "cache-control": "no-store",
    }
    return Response(result.outcome.body, 200, headers, media_type=result.outcome.media)


def _safely(handler: Handler) -> Handler:
    async def handle(request: HttpRequest) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return Response(from_error(error), status_of(error.code), media_type=MEDIA.decode())

    return handle


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
