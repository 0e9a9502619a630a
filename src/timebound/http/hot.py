"""The fast path: a POST to a model's route, from ASGI messages to a request and from its result to bytes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from timebound.admission import Gate
from timebound.clock import Clock
from timebound.errors import Refusal, RequestError
from timebound.events import Answered, Events, Refused
from timebound.http.problems import MEDIA, from_error, from_outcome, retry_after, status_of
from timebound.http.shape import Shape
from timebound.http.timeouts import timeout_s
from timebound.types import Body, ModelInfo, Request, Result

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_MAX_ID = 128


class Route:
    """One model's way in: what it takes, how long it may take, how its body is checked."""

    __slots__ = ("deadline_s", "info", "is_json", "shape")

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.deadline_s = info.deadline_s
        self.is_json = info.body is Body.JSON
        self.shape = Shape(info) if self.is_json else None


class HotPath:
    """Answers POSTs to models' routes; raises nothing, whatever comes in."""

    def __init__(self, gate: Gate, *, clock: Clock, events: Events, cap_s: float) -> None:
        self._gate = gate
        self._clock = clock
        self._events = events
        self._cap_s = cap_s
        self._prefix = os.urandom(4).hex()
        self._number = count(1)

    async def answer(self, route: Route, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request; exactly one response is sent unless the client has left."""
        arrived = self._clock.now()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._request_id(headers)
        try:
            body = await _read_body(receive)
            if body is None:
                return  # the client left before its request was whole
            request = self._request(route, headers, body, arrived, request_id)
            result = await self._gate.admit(request)
        except RequestError as error:
            await self._refuse(route, error, request_id, arrived, send)
        else:
            await self._reply(request, result, send)

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and len(given) <= _MAX_ID and given.isascii():
            return given.decode()
        return f"{self._prefix}-{next(self._number):x}"

    def _request(
        self, route: Route, headers: dict[bytes, bytes], body: bytes, arrived: float, request_id: str
    ) -> Request:
        limit = timeout_s(headers, route.deadline_s, self._cap_s)
        key: str | None = None
        if route.shape is not None:
            _check_media(headers)
            if not body:
                raise RequestError("the body is empty; send JSON", code="empty_body")
            key = route.shape.check(body)
        elif not body:
            raise RequestError("the body is empty", code="empty_body")
        given = headers.get(b"idempotency-key")
        if given is not None:
            key = given.decode("latin-1")
        return Request(request_id, route.info.name, body, arrived, arrived + limit, key)

    async def _reply(self, request: Request, result: Result, send: Send) -> None:
        outcome = result.outcome
        if outcome.code:
            status, media = status_of(outcome.code), MEDIA
            body = from_outcome(outcome, request.id)
        else:
            status, media, body = 200, outcome.media.encode(), outcome.body
        timing = result.timing
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", media),
                    (b"content-length", b"%d" % len(body)),
                    (b"x-request-id", request.id.encode()),
                    (b"timebound-quality", result.quality.encode()),
                    (b"timebound-members", b"%d/%d" % (result.members, result.of_members)),
                    (b"timebound-source", result.source.encode()),
                    (b"timebound-batch", b"%d" % result.batch_size),
                    (
                        b"server-timing",
                        b"queue;dur=%.3f, prepare;dur=%.3f, infer;dur=%.3f, finish;dur=%.3f"
                        % (
                            result.queue_s * 1e3,
                            timing.prepare_s * 1e3,
                            timing.infer_s * 1e3,
                            timing.finish_s * 1e3,
                        ),
                    ),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})
        self._events.emit(Answered(request, result, status, self._clock.now() - request.arrived))

    async def _refuse(self, route: Route, error: RequestError, request_id: str, arrived: float, send: Send) -> None:
        status = status_of(error.code)
        await send_problem(send, error, request_id)
        self._events.emit(Refused(route.info.name, request_id, error.code, status, self._clock.now() - arrived))


async def send_problem(send: Send, error: RequestError, request_id: str | None = None) -> None:
    """Send an error as problem+json."""
    body = from_error(error, request_id)
    headers = [(b"content-type", MEDIA), (b"content-length", b"%d" % len(body)), *retry_after(error)]
    if request_id is not None:
        headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": status_of(error.code), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def not_ready(reason: str) -> Refusal:
    """The refusal while no model can answer yet."""
    return Refusal(f"the server is {reason}", code="not_ready", retry_after_s=1)


def _check_media(headers: dict[bytes, bytes]) -> None:
    media = headers.get(b"content-type")
    if media is not None and not media.startswith((b"application/json", b"text/json")):
        kind = media.split(b";")[0].strip().lower()
        if not (kind.startswith(b"application/") and kind.endswith((b"+json", b"/json"))):
            raise RequestError(
                f"content-type {kind.decode('latin-1')!r} is not taken here; send application/json",
                code="unsupported_media_type",
            )


async def _read_body(receive: Receive) -> bytes | None:
    message = await receive()
    if message["type"] != "http.request":
        return None
    body: bytes = message["body"]
    if not message.get("more_body"):
        return body
    parts = [body]
    while message.get("more_body"):
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
    return b"".join(parts)
