"""Who is asking, what, under which key and until when: the one way in, the same for every protocol.

`Intake.take` has the headers and the whole body of a request, and the route they came by. The route's surface reads the
items; here each becomes a `Question`, and what comes of them is gathered and given back to the surface to write. It
knows neither sockets nor ASGI: whoever calls brings a `respond` that is called exactly once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from timebound.admission import Client, Hold
from timebound.clock import Clock
from timebound.errors import BadInput, RequestError
from timebound.events import Answered, Events, Refused
from timebound.http.cors import Cors, as_head
from timebound.http.problems import status_of
from timebound.http.routes import Route
from timebound.http.surfaces.base import Asked, Item
from timebound.requests.identity import MAX_KEY
from timebound.types import Deliver, Question, Result

Respond = Callable[[int, bytes, bytes], None]
"""Takes status, header lines (each ended by CRLF) and body."""

log = logging.getLogger("timebound.http")

_MAX_ID = 128


class Requests(Protocol):
    """Where questions go; the dispatcher."""

    def submit(self, question: Question, deliver: Deliver) -> Any: ...
    def gone(self, attempt: Any) -> None: ...


class Intake:
    """Takes requests to models in; raises nothing, whatever comes."""

    def __init__(
        self,
        requests: Requests,
        *,
        clock: Clock,
        events: Events,
        cap_s: float,
        cors: Cors | None = None,
        is_behind: Callable[[float], bool] = lambda now: False,
    ) -> None:
        self.submit = requests.submit
        self.gone = requests.gone
        self.clock = clock
        self.events = events
        self._is_behind = is_behind
        self._cors = cors
        self._cap_s = cap_s
        self._prefix = os.urandom(4).hex()
        self._number = count(1)

    def take(
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
        """Take one request in; `respond` is called once: now for a refusal, else when its results are there.

        If something is returned, call it when the client leaves before that. `hold` stands for the body's memory,
        `unread_s` tells how long the request was here before it was read.
        """
        arrived = self.clock.now()
        if unread_s is not None and self._is_behind(arrived):
            arrived -= unread_s()
        fields = dict(headers)
        if self._cors is not None:
            respond = _with_lines(respond, as_head(self._cors.lines(fields.items())))
        taken = Taken(self, route, self._request_id(fields), arrived=arrived, respond=respond, client=client)
        try:
            if client is not None:
                taken.let_in(client)
            limit_s = timeout_s(headers, route.deadline_s, self._cap_s)
            taken.asked = asked = route.surface.read(fields, body)
            if asked.timeout_s is not None:
                limit_s = min(limit_s, asked.timeout_s)
            taken.ask(fields, arrived + limit_s, hold)
        except RequestError as error:
            taken.refuse(error)
        except Exception:
            log.exception("a request broke the gateway", extra={"request_id": taken.id})
            taken.refuse(RequestError("something broke in the server; its log has the details"))
        return None if taken.is_over else taken.leave

    def _request_id(self, fields: Mapping[bytes, bytes]) -> str:
        given = fields.get(b"x-request-id")
        if given and len(given) <= _MAX_ID and given.isascii() and given.decode().isprintable():
            return given.decode()
        return f"{self._prefix}-{next(self._number):x}"


class Taken:
    """One request that was taken in, until all its items have their results."""

    __slots__ = (
        "_attempts", "_client", "_exit", "_intake", "_missing", "_questions", "_respond", "_results", "_route",
        "arrived", "asked", "id", "is_over",
    )  # fmt: skip

    def __init__(
        self, intake: Intake, route: Route, request_id: str, *, arrived: float, respond: Respond, client: Client | None
    ) -> None:
        self._intake = intake
        self._route = route
        self.id = request_id
        self.arrived = arrived
        self._respond = respond
        self._client = client
        self._exit: Callable[[], None] | None = None
        self.asked: Asked | None = None
        self._questions: list[Question] = []
        self._results: list[Result | RequestError] = []
        self._attempts: list[Any] = []
        self._missing = 0
        self.is_over = False

    def let_in(self, client: Client) -> None:
        """Count it for the holder of its API key; raises `RequestError` if that may not ask this now."""
        client.check_model(self._route.model)
        client.count(self.arrived)
        self._exit = client.enter()

    def ask(self, fields: Mapping[bytes, bytes], deadline: float, hold: Hold | None) -> None:
        """Submit every item; raises `RequestError` if the headers are wrong."""
        assert self.asked is not None
        items = self.asked.items
        key = _header_key(fields)
        priority = _priority(fields.get(b"timebound-priority"))
        votes = _wants_votes(fields.get(b"timebound-details"))
        if self.asked.priority is not None:
            priority = self.asked.priority
        for place, item in enumerate(items):
            own = (item.key or None) if key is None else key if len(items) == 1 else f"{key}#{place}"
            question = self._question(item, own, deadline, priority)
            question.wants_votes, question.hold = votes, hold
            self._questions.append(question)
        self._missing = len(items)
        self._results = [_NO_RESULT] * len(items)
        for place, question in enumerate(self._questions):
            try:
                attempt = self._intake.submit(question, partial(self._put, place))
            except RequestError as error:
                self._put(place, error)
            else:
                if not self.is_over:
                    self._attempts.append(attempt)

    def _question(self, item: Item, key: str | None, deadline: float, priority: int | None) -> Question:
        route, client = self._route, self._client
        fingerprint = b""
        if key is not None or route.identity.is_by_content:
            if key is not None and len(key) > MAX_KEY:
                raise BadInput(f"the key has more than {MAX_KEY} characters")
            key, fingerprint = route.identity.of(key, item.body)
        question = Question(
            self.id, route.model, item.body, self.arrived, deadline, key, item.size, priority or 0, fingerprint
        )
        question.served, question.version = route.served, route.version
        if client is not None:
            question.client = client.name
            question.priority = client.priority(priority)
            question.key = key and in_namespace(client.name, key)
        return question

    def leave(self) -> None:
        """The client has left."""
        if not self.is_over:
            self._close()
            for attempt in self._attempts:
                self._intake.gone(attempt)
            self._attempts = []

    def refuse(self, error: RequestError) -> None:
        """Nothing of it was let in; or something broke, and then nobody waits for what was."""
        if not self.is_over:
            self.leave()
            self._questions = []
            self._answer(*self._route.surface.refuse(error, self.id), [error])

    def _put(self, place: int, result: Result | RequestError) -> None:
        if self.is_over:
            return
        self._results[place] = result
        self._missing -= 1
        if self._missing:
            return
        self._close()
        self._attempts = []  # they know this; a cycle that only the collector would end
        assert self.asked is not None
        try:
            reply = self._route.surface.write(self.asked, self._questions, self._results)
        except Exception:
            log.exception("an answer could not be written", extra={"request_id": self.id})
            broken = RequestError("something broke in the server; its log has the details")
            self._results = [broken] * len(self._results)
            reply = self._route.surface.refuse(broken, self.id)
        self._answer(*reply, self._results)

    def _close(self) -> None:
        self.is_over = True
        if self._exit is not None:
            self._exit()
            self._exit = None

    def _answer(self, status: int, head: bytes, body: bytes, results: Sequence[Result | RequestError]) -> None:
        self._respond(status, head, body)
        events, seconds = self._intake.events, self._intake.clock.now() - self.arrived
        whose = "" if self._client is None else self._client.name
        for place, result in enumerate(results):
            if isinstance(result, RequestError):
                own = status if len(results) == 1 else status_of(result.code)
                events.emit(Refused(self._route.model, self.id, result.code, own, seconds, whose))
            else:
                own = status if len(results) == 1 else status_of(result.outcome.code) if result.outcome.code else 200
                events.emit(Answered(self._questions[place], result, own, seconds))


_NO_RESULT = RequestError("no result yet")


def in_namespace(client: str, key: str) -> str:
    """A request's key among those of all API keys: nobody reaches another's results by it. Names have no colon."""
    return f"{client}:{key}"


def _with_lines(respond: Respond, lines: bytes) -> Respond:
    return lambda status, head, body: respond(status, head + lines, body)


# ---------------------------------------------------------------------- what headers say, in every protocol


def _header_key(fields: Mapping[bytes, bytes]) -> str | None:
    given = fields.get(b"idempotency-key", b"").strip()
    if not given:
        return None
    try:
        key = given.decode()  # as clients mean it: UTF-8 where it is that, as in a body or a URL
    except UnicodeDecodeError:
        key = given.decode("latin-1")
    if len(key) > MAX_KEY:
        raise _bad_header("idempotency-key", f"has more than {MAX_KEY} characters")
    return key


def _priority(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) > 3 or not value.strip().removeprefix(b"-").isdigit():
        raise _bad_header("timebound-priority", "must be a whole number, such as 1; higher goes first")
    return int(value)


def _wants_votes(value: bytes | None) -> bool:
    if value is None:
        return False
    if value.strip().lower() != b"votes":
        raise _bad_header("timebound-details", "must be: votes")
    return True


def _bad_header(name: str, what: str) -> RequestError:
    return RequestError(f"{name} {what}", code="bad_header", field=name)


def _milliseconds(value: str) -> float:
    return float(value) * 1e-3


_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def _grpc(value: str) -> float:
    digits, unit = value[:-1], value[-1:]
    if not digits.isdecimal() or len(digits) > 8:
        raise ValueError(value)
    return int(digits) * _GRPC_UNITS[unit]


# Header, how to read its value in seconds, and what to say it should look like.
_LIMITS: dict[bytes, tuple[Callable[[str], float], str]] = {
    b"timebound-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
    b"grpc-timeout": (_grpc, "digits and a unit of H, M, S, m, u, n, such as 250m"),
    b"x-request-timeout-seconds": (float, "seconds, such as 0.25"),
    b"x-envoy-expected-rq-timeout-ms": (_milliseconds, "milliseconds, such as 250"),
}


def timeout_s(headers: Iterable[tuple[bytes, bytes]], default_s: float, cap_s: float) -> float:
    """Seconds this request may take: the smallest header, else the model's own; never above the server's cap.

    A header may come several times, from several proxies on the way; names are in lower case.
    """
    smallest: float | None = None
    for name, value in headers:
        if name not in _LIMITS:
            continue
        read, form = _LIMITS[name]
        try:
            length = read(value.decode("ascii").strip())
        except (ValueError, KeyError, OverflowError):
            length = math.nan
        if not 0 < length < math.inf:
            raise _bad_header(name.decode(), f"must be {form}")
        smallest = length if smallest is None else min(smallest, length)
    return min(default_s if smallest is None else smallest, cap_s)
