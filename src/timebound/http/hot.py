"""The fast path: a POST to a model's route, from headers and body to a request, and from its result to bytes.

It knows neither sockets nor ASGI: whoever calls `start` brings a `respond` that is called exactly once, with the
status, the header lines and the body. `Connection` calls it straight from the parser; `App` calls it for
everything else that speaks ASGI.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from itertools import count

from timebound.admission import Client, Gate, Hold
from timebound.clock import Clock
from timebound.errors import BadInput, RequestError
from timebound.events import Answered, Events, Refused
from timebound.http.cors import Cors, as_head
from timebound.http.problems import MEDIA, from_error, from_outcome, headers_of, status_of
from timebound.http.shape import Shape
from timebound.http.timeouts import timeout_s
from timebound.store.fingerprint import of_bytes, of_json
from timebound.types import Body, ModelInfo, Request, Result

Respond = Callable[[int, bytes, bytes], None]
"""Takes status, header lines (each ended by CRLF) and body."""

log = logging.getLogger("timebound.http")

_MAX_ID = 128
MAX_KEY = 256
"""Characters of a key; longer ones are refused."""

_ANSWER = (
    b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\ntimebound-source: %b\r\ntimebound-batch: %d\r\n"
    b"server-timing: queue;dur=%.3f, prepare;dur=%.3f, infer;dur=%.3f, finish;dur=%.3f\r\n"
)
_GOOD = b"timebound-quality: %b\r\ntimebound-members: %d/%d\r\n"


class Route:
    """One model's way in: how long it may take and how its body is checked."""

    __slots__ = ("_content", "_ignore", "deadline_s", "model", "served", "shape", "version")

    def __init__(self, info: ModelInfo, *, is_version: bool = False) -> None:
        self.model = info.base
        self.served, self.version = (info.name, info.version) if is_version else ("", "")
        self.deadline_s = info.deadline_s
        self.shape = Shape(info) if info.body is Body.JSON else None
        self._ignore = frozenset(info.key_ignore)
        self._content = f"content:{info.version}:" if info.cache == "content" else None

    def identify(self, key: str | None, body: bytes) -> tuple[str | None, bytes]:
        """A request's key and its body's fingerprint; without a key, a model that caches by content makes one."""
        if key is None and self._content is None:
            return None, b""
        print_ = of_json(body, self._ignore) if self.shape is not None else of_bytes(body)
        if key is None:
            return (self._content or "") + print_.hex(), print_
        # One version was asked for: another one's answer to the same key will not do.
        return f"@{self.version}/{key}" if self.version else key, print_


class HotPath:
    """Answers POSTs to models' routes; raises nothing, whatever comes in."""

    def __init__(
        self,
        gate: Gate,
        *,
        clock: Clock,
        events: Events,
        cap_s: float,
        cors: Cors | None = None,
        is_behind: Callable[[float], bool] = lambda now: False,
    ) -> None:
        self._gate = gate
        self._is_behind = is_behind
        self._cors = cors
        self._clock = clock
        self._events = events
        self._cap_s = cap_s
        self._prefix = os.urandom(4).hex()
        self._number = count(1)

    def start(
        self,
        route: Route,
        headers: Collection[tuple[bytes, bytes]],
        body: bytes,
        respond: Respond,
        *,
        client: Client | None = None,
        hold: Hold | None = None,
        unread_s: Callable[[], float] | None = None,
    ) -> Callable[[], None] | None:
        """Take one request in; `respond` is called once: now for a refusal, else when its result is there.

        If something is returned, call it when the client leaves before that. `hold` stands for the body's memory,
        `unread_s` tells how long the request was here before it was read.
        """
        arrived = self._clock.now()
        if unread_s is not None and self._is_behind(arrived):
            arrived -= unread_s()
        fields = dict(headers)
        request_id = self._request_id(fields)
        if self._cors is not None:
            respond = _with_lines(respond, as_head(self._cors.lines(fields.items())))
        whose, leave = "", None
        try:
            if client is not None:
                whose = client.name
                leave = _let_in(client, route.model, arrived)
                respond = _then(leave, respond)
            limit_s = timeout_s(headers, route.deadline_s, self._cap_s)
            given, size = _first_look(route, fields, body)
            key, fingerprint = route.identify(given, body)
            asked = _priority(fields.get(b"timebound-priority"))
            if client is None:
                priority = asked or 0
            else:
                priority = client.priority(asked)
                key = key and in_namespace(whose, key)
            deadline = arrived + limit_s
            votes = _wants_votes(fields.get(b"timebound-details"))
            request = Request(request_id, route.model, body, arrived, deadline, key, size, priority, fingerprint, votes)
            request.served, request.version = route.served, route.version
            request.client, request.hold = whose, hold
            gone = self._gate.admit(request, partial(self._finish, request, respond))
            return gone if leave is None else _both(leave, gone)
        except RequestError as error:
            self._refuse(route.model, request_id, arrived, error, respond, client=whose)
        except Exception:
            log.exception("a request broke the gateway", extra={"request_id": request_id})
            broken = RequestError("something broke in the server; its log has the details")
            self._refuse(route.model, request_id, arrived, broken, respond, client=whose)
        return None

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given and len(given) <= _MAX_ID and given.isascii() and given.decode().isprintable():
            return given.decode()
        return f"{self._prefix}-{next(self._number):x}"

    def _finish(self, request: Request, respond: Respond, result: Result | RequestError) -> None:
        if isinstance(result, RequestError):
            self._refuse(request.model, request.id, request.arrived, result, respond, client=request.client)
            return
        outcome, timing = result.outcome, result.timing
        if outcome.code:
            status, media, body = status_of(outcome.code), MEDIA, from_outcome(outcome, request.id)
        else:
            status, media, body = 200, outcome.media.encode(), outcome.body
        head = _ANSWER % (
            media,
            len(body),
            request.id.encode(),
            result.source.encode(),
            result.batch_size,
            result.queue_s * 1e3,
            timing.prepare_s * 1e3,
            timing.infer_s * 1e3,
            timing.finish_s * 1e3,
        )
        if not outcome.code:  # an item that failed has no answer whose quality could be told
            head += _GOOD % (result.quality.encode(), result.members, result.of_members)
            if request.wants_votes and result.votes:
                head += b"timebound-votes: %b\r\n" % result.votes.encode()
        if request.version:
            head += b"timebound-version: %b\r\n" % (result.version or request.version).encode()
        respond(status, head, body)
        self._events.emit(Answered(request, result, status, self._clock.now() - request.arrived))

    def _refuse(
        self, model: str, request_id: str, arrived: float, error: RequestError, respond: Respond, *, client: str
    ) -> None:
        status, head, body = problem(error, request_id)
        respond(status, head, body)
        self._events.emit(Refused(model, request_id, error.code, status, self._clock.now() - arrived, client))


def in_namespace(client: str, key: str) -> str:
    """A request's key among those of all API keys: nobody reaches another's results by it. Names have no colon."""
    return f"{client}:{key}"


def _let_in(client: Client, model: str, now: float) -> Callable[[], None]:
    """What to call when the request is over; raises `RequestError` if the holder of a key may not ask this now."""
    client.check_model(model)
    client.count(now)
    return client.enter()


def _then(first: Callable[[], None], respond: Respond) -> Respond:
    def both(status: int, head: bytes, body: bytes) -> None:
        first()
        respond(status, head, body)

    return both


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _with_lines(respond: Respond, lines: bytes) -> Respond:
    return lambda status, head, body: respond(status, head + lines, body)


def problem(error: RequestError, request_id: str | None = None) -> tuple[int, bytes, bytes]:
    """An error as status, header lines and problem+json body."""
    body = from_error(error, request_id)
    head = b"content-type: %b\r\ncontent-length: %d\r\n" % (MEDIA, len(body))
    head += b"".join(b"%b: %b\r\n" % header for header in headers_of(error))
    if request_id is not None:
        head += b"x-request-id: %b\r\n" % request_id.encode()
    return status_of(error.code), head, body


def _priority(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) > 3 or not value.strip().removeprefix(b"-").isdigit():
        raise RequestError(
            "timebound-priority must be a whole number, such as 1; higher goes first",
            code="bad_header",
            field="timebound-priority",
        )
    return int(value)


def _wants_votes(value: bytes | None) -> bool:
    if value is None:
        return False
    if value.strip().lower() != b"votes":
        raise RequestError("timebound-details must be: votes", code="bad_header", field="timebound-details")
    return True


def _first_look(route: Route, headers: dict[bytes, bytes], body: bytes) -> tuple[str | None, float]:
    """The key and size of a request whose body passes the first look; raises `RequestError`."""
    if b"content-encoding" in headers:
        _check_encoding(headers[b"content-encoding"])
    if route.shape is not None:
        _check_media(headers.get(b"content-type"))
    if not body:
        raise RequestError("the body is empty", code="empty_body")
    key, size = route.shape.check(body) if route.shape is not None else (None, 1.0)
    given = headers.get(b"idempotency-key", b"").strip()
    if given:
        key = _text(given)
        if len(key) > MAX_KEY:
            raise RequestError(
                f"idempotency-key has more than {MAX_KEY} characters", code="bad_header", field="idempotency-key"
            )
    elif key is not None and len(key) > MAX_KEY:
        raise BadInput(f"the key has more than {MAX_KEY} characters")
    return key or None, size


def _text(header: bytes) -> str:
    """A header as clients mean it: UTF-8 where it is that, as in a body or a URL; else each byte a character."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def _check_encoding(encoding: bytes) -> None:
    # Unpacking would cost the event loop, and with it everyone's deadlines, far more than the bytes that came.
    if encoding.strip().lower() not in (b"identity", b""):
        raise RequestError("compressed bodies are not taken; send this one as it is", code="unsupported_encoding")


def _check_media(media: bytes | None) -> None:
    if media is None or media.startswith(b"application/json"):
        return
    kind = media.split(b";")[0].strip().lower()
    if kind not in (b"application/json", b"text/json") and not kind.endswith(b"+json"):
        raise RequestError(
            f"content-type {kind.decode('latin-1')!r} is not taken here; send application/json",
            code="unsupported_media_type",
        )
