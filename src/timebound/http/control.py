"""What the operator may ask of a running server over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.errors import RequestError, SetupError
from timebound.http.admin import Admin
from timebound.http.responses import json_response
from timebound.versions import Traffic

log = logging.getLogger("timebound.http")


class Controlled(Protocol):
    """The gateway; each raises `SetupError` if nothing has changed."""

    def traffic(self, model: str) -> Traffic: ...
    async def set_traffic(self, model: str, traffic: Traffic) -> Traffic: ...
    async def roll_back(self, model: str) -> Traffic: ...


class Control:
    """The operator's routes."""

    def __init__(self, gateway: Controlled, reload: Callable[[], Awaitable[list[str]]], admin: Admin) -> None:
        self._gateway = gateway
        self._reload_all = reload
        self._admin = admin

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/reload", self._checked(self._reload), methods=["POST"]),
            # One route for both: the answer to any other method names them all.
            Route("/v1/models/{model}/traffic", self._checked(self._traffic), methods=["GET", "PUT"]),
            Route("/v1/models/{model}/rollback", self._checked(self._roll_back), methods=["POST"]),
        ]

    def _checked(self, act: Callable[[HttpRequest], Awaitable[Any]]) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def handle(request: HttpRequest) -> Response:
            self._admin.check(request)
            try:
                return json_response(await act(request))
            except SetupError as error:
                log.error("not changed, asked for by %s %s: %s", request.method, request.url.path, error)
                raise RequestError(str(error), code="reload_failed") from None

        return handle

    async def _reload(self, request: HttpRequest) -> dict[str, Any]:
        return {"models": await self._reload_all()}

    async def _traffic(self, request: HttpRequest) -> Traffic:
        if request.method != "PUT":
            return self._gateway.traffic(request.path_params["model"])
        try:
            traffic = msgspec.json.decode(await request.body(), type=Traffic)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            detail = f'{error}; send {{"split": {{"1": 0.9, "2": 0.1}}, "shadow": []}}'
            raise RequestError(detail, code="bad_input") from None
        return await self._gateway.set_traffic(request.path_params["model"], traffic)

    async def _roll_back(self, request: HttpRequest) -> Traffic:
        return await self._gateway.roll_back(request.path_params["model"])
