"""What is said where no model answers: none has this name or version, or nothing is at this path or by this method."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import unquote_plus

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from timebound.admission import Client
from timebound.catalogue import Catalogue
from timebound.errors import Refusal, RequestError
from timebound.handlers.registry import no_version
from timebound.http.access import CLIENT, Access
from timebound.http.problems import MEDIA, headers_of, problem_body
from timebound.http.responses import problem_response
from timebound.http.routes import Route as ModelRoute
from timebound.http.surfaces import torchserve
from timebound.store.base import Store
from timebound.types import ModelInfo

INVOCATIONS = "/invocations"
_MODEL_NAME = "model_name"
"""What clients of SageMaker's path may say in their query where there are several models."""
_LONGEST_NAME = 1_024
"""Bytes of a name as it is written there; a file's name has 255 at most, and escapes are three bytes."""
_HANDLERS_PATHS = ("/predictions/", "/explanations/", "/models", INVOCATIONS)
_ASKED = ["GET", "POST", "PUT"]


class Shown(Protocol):
    """What the app shows of a gateway."""

    catalogue: Catalogue
    store: Store

    @property
    def has_handlers(self) -> bool: ...
    @property
    def progress(self) -> str: ...
    def status(self) -> dict[str, Any]: ...
    def why_not_ready(self) -> str | None: ...


class Missing:
    """Says what is not there; of what is, only what who asks may know."""

    def __init__(self, served: Shown, access: Access | None) -> None:
        self._served = served
        self._access = access

    def routes(self) -> list[Route]:
        """What to mount, behind everything that is there."""
        return [
            Route("/predictions/{model}", self.no_model, methods=_ASKED),
            Route("/predictions/{model}/{version}", self._no_version, methods=_ASKED),
            Route("/explanations/{model}", self.no_model, methods=_ASKED),
            Route("/explanations/{model}/{version}", self._no_version, methods=_ASKED),
            Route(INVOCATIONS, self._which, methods=_ASKED),
        ]

    def shows(self, scope: Scope, model: str) -> bool:
        """Whether who asks may know of this model."""
        return self._access is None or self._access.shows(scope, model)

    def shown(self, request: HttpRequest) -> list[ModelInfo]:
        """The models that who asks may know of."""
        return [info for info in self._served.catalogue.models.values() if self.shows(request.scope, info.base)]

    def why_not_ready(self, request: HttpRequest) -> str | None:
        """In full for the operator alone where there are API keys: how a worker ended names models and files."""
        reason = self._served.why_not_ready()
        is_whole = self._access is None or self._access.is_operators(request.scope)
        return reason if reason is None or is_whole else reason.partition(":")[0]

    # ------------------------------------------------------------------ models and versions

    async def no_model(self, request: HttpRequest) -> Response:
        """There is no model of the name in the path."""
        check_model(request)
        self._check_ready(request)
        name = request.path_params["model"]
        detail = f"there is no model {name!r}; this server has: {self._names(request)}"
        if self._served.has_handlers:  # the words that their clients look for
            detail = f"Model not found: {name}"
        raise RequestError(detail, code="unknown_model")

    async def _no_version(self, request: HttpRequest) -> Response:
        check_model(request)
        name, version = request.path_params["model"], request.path_params["version"]
        versions = [info.version for info in self.shown(request) if info.base == name]
        if not versions:
            return await self.no_model(request)
        self._check_ready(request)
        if self._served.has_handlers:
            raise no_version(name, version)
        detail = f"model {name!r} has no version {version!r}; it has: {', '.join(sorted(versions))}"
        raise RequestError(detail, code="unknown_model")

    async def _which(self, request: HttpRequest) -> Response:
        """Several models could be meant, or none is there yet."""
        self._check_ready(request)
        named = named_in(request.scope["query_string"])
        if named is not None:
            request.path_params["model"] = named
            return await self.no_model(request)
        if self._served.has_handlers:
            raise RequestError("Parameter model_name is required.", code="bad_input")
        detail = (
            f"this server has several models: ask one at /models/NAME/invoke, or here with ?{_MODEL_NAME}=NAME; "
            f"they are: {self._names(request)}"
        )
        raise RequestError(detail, code="not_found")

    def _names(self, request: HttpRequest) -> str:
        return ", ".join(sorted(info.name for info in self.shown(request) if info.name == info.base))

    def _check_ready(self, request: HttpRequest) -> None:
        reason = self.why_not_ready(request)
        if reason is not None:
            raise _not_ready(reason)

    # ------------------------------------------------------------------ errors

    async def on_refusal(self, request: HttpRequest, error: RequestError) -> Response:
        """A route of the server's own says no."""
        return self.problem(error, request.url.path)

    def wrong_method(self, path: str, route: ModelRoute) -> Response:
        """A model is asked in a way that its protocol does not have."""
        allowed = ["POST", *sorted(method.decode() for method in route.methods if method != b"POST")]
        error = RequestError(f"send a {' or '.join(allowed)}", code="method_not_allowed")
        response = _in_their_words(error) if route.info.is_handler else problem_response(error, path)
        response.headers["allow"] = ", ".join(allowed)
        return response

    def problem(self, error: RequestError, path: str) -> Response:
        """An error, where handlers are asked in the words that their clients know."""
        is_theirs = path.startswith(_HANDLERS_PATHS) and self._served.has_handlers
        return _in_their_words(error) if is_theirs else problem_response(error, path)

    async def on_http_error(self, request: HttpRequest, error: HTTPException) -> Response:
        """Nothing is at this path, or it takes another method."""
        path = request.url.path
        if error.status_code == 405:
            response = self.problem(
                RequestError(f"{request.method} is not taken here", code="method_not_allowed"), path
            )
            response.headers.update(error.headers or {})
            return response
        reason = self._served.why_not_ready()
        if error.status_code == 404 and reason == "loading" and request.method == "POST":
            return problem_response(_not_ready(reason), path)  # the model that will have this path may still be loading
        if error.status_code == 404:
            known = ", ".join(sorted(path for info in self.shown(request) for path in info.paths))
            is_hidden = not known and self._access is not None
            where = "" if is_hidden else f"; models answer at: {known or 'none yet'}"
            return self.problem(RequestError(f"nothing is at {path}{where}; see /docs", code="not_found"), path)
        return Response(problem_body("internal", error.detail), error.status_code, media_type=MEDIA.decode())


def named_in(query: bytes) -> str | None:
    """The model that a request to SageMaker's path names in its query string."""
    _, _, rest = (b"&" + query).partition(b"&%b=" % _MODEL_NAME.encode())  # the rest, however much, is the model's
    name = rest[:_LONGEST_NAME].partition(b"&")[0]
    return unquote_plus(name.decode("latin-1")) if name else None


def check_model(request: HttpRequest) -> None:
    """Who may not ask a model is not told either whether there is one of this name."""
    client: Client | None = request.scope.get(CLIENT)
    if client is not None:
        client.check_model(request.path_params["model"].partition("@")[0])


def _in_their_words(error: RequestError) -> Response:
    status, media, body = torchserve.said_error(error)
    headers = {name.decode(): value.decode() for name, value in headers_of(error)}
    return Response(body, status, headers, media_type=media.decode())


def _not_ready(reason: str) -> Refusal:
    return Refusal(f"the server is not ready: {reason}", code="not_ready", retry_after_s=1)
