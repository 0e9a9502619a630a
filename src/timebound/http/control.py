"""What the operator may ask of a running server over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from timebound.errors import RequestError, SetupError
from timebound.http.admin import Admin
from timebound.http.problems import MEDIA, from_error, status_of


class Control:
    """The operator's routes."""

    def __init__(self, reload: Callable[[], Awaitable[list[str]]], admin: Admin) -> None:
        self._reload = reload
        self._admin = admin

    def routes(self) -> list[Route]:
        """What to mount."""
        return [Route("/v1/reload", self._reload_now, methods=["POST"])]

    async def _reload_now(self, request: HttpRequest) -> Response:
        try:
            self._admin.check(request)
            return Response(msgspec.json.encode({"models": await self._reload()}), media_type="application/json")
        except SetupError as error:
            return _problem(RequestError(str(error), code="reload_failed"))
        except RequestError as error:
            return _problem(error)


def _problem(error: RequestError) -> Response:
    return Response(from_error(error), status_of(error.code), media_type=MEDIA.decode())
