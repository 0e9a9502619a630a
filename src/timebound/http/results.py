"""Results by key over HTTP: read one, list them, forget them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.admission import Client
from timebound.errors import RequestError
from timebound.http.access import CLIENT
from timebound.http.admin import Admin
from timebound.http.responses import json_response
from timebound.store.base import Store, Stored

_MOST_LISTED = 10_000


class Results:
    """The routes under /v1/results. Reading one by its key is for everyone, the rest for the operator.

    With API keys a client reads its own results only, and the operator those of all, as NAME:KEY.
    """

    def __init__(
        self, store: Store, is_running: Callable[[str, str], bool], admin: Admin, *, has_clients: bool = False
    ) -> None:
        self._store = store
        self._has_clients = has_clients
        self._is_running = is_running
        self._admin = admin

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/results", self._many, methods=["GET", "DELETE"]),
            Route("/v1/results/{model}", self._many, methods=["GET", "DELETE"]),
            Route("/v1/results/{model}/{key:path}", self._one, methods=["GET", "DELETE"]),
        ]

    async def _one(self, request: HttpRequest) -> Response:
        model, key = request.path_params["model"], request.path_params["key"]
        client: Client | None = request.scope.get(CLIENT)
        if request.method == "DELETE" or (client is None and self._has_clients):
            self._admin.check(request)
        if request.method == "DELETE":
            return json_response({"cleared": await self._store.clear(model, key)})
        if client is not None:
            client.check_model(model)
            key = client.own(key)
        found = await self._store.read((model, key))
        if isinstance(found, Stored):
            return _answer(found)
        if found is not None or self._is_running(model, key):
            return Response(b'{"state":"running"}', 202, {"retry-after": "1"}, media_type="application/json")
        raise RequestError(
            f"no result of {model!r} is kept under this key; it was never finished, or its time is over",
            code="no_result",
        )

    async def _many(self, request: HttpRequest) -> Response:
        self._admin.check(request)
        model = request.path_params.get("model")
        if request.method == "DELETE":
            return json_response({"cleared": await self._store.clear(model)})
        found: list[Any] = []
        async for entry in self._store.entries(model):
            found.append(entry)
            if len(found) == _MOST_LISTED:
                break
        return json_response({"results": found, "is_complete": len(found) < _MOST_LISTED})


def _answer(stored: Stored) -> Response:
    result = stored.result
    headers = {
        "timebound-quality": result.quality.value,
        "timebound-members": f"{result.members}/{result.of_members}",
        "timebound-source": "stored",
        "timebound-finished-at": f"{stored.at:.3f}",
        "cache-control": "no-store",
    }
    headers |= dict(line.split(": ", 1) for line in result.outcome.headers.splitlines())
    return Response(result.outcome.body, 200, headers, media_type=result.outcome.media)
