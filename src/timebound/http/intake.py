"""Who is asking, what, under which key and until when: the one way in, the same for every protocol.

`Intake.take` has the headers and the whole body of a request, and the route they came by. The route's surface reads the
items; here each becomes a `Question`, and what comes of them is gathered and given back to the surface to write. It
knows neither sockets nor ASGI: whoever calls brings a `respond` that is called exactly once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from timebound.admission import Client, Hold
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.events import Answered, Events, Refused
from timebound.http.cors import Cors, as_head
from timebound.http.headers import LIMITS, read_key, read_priority, read_votes, timeout_s
from timebound.http.problems import status_of
from timebound.http.routes import Route
from timebound.http.surfaces.base import Asked, Item
from timebound.requests.identity import OURS, check_key
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
            taken.asked = asked = route.surface.read(fields, body)
            limit_s = min(asked.timeout_s or route.deadline_s, self._cap_s)
            if not LIMITS.keys().isdisjoint(fields):
                limit_s = timeout_s(headers, limit_s, min(asked.timeout_s or math.inf, self._cap_s))
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
        if not items:
            raise RequestError("the request has no items", code="empty_body")
        if self._client is not None and len(items) > 1:
            self._client.count(self.arrived, len(items) - 1)  # one was counted on the way in
        key, priority, votes = None, self.asked.priority, False
        if b"idempotency-key" in fields:
            key = read_key(fields[b"idempotency-key"])
        if b"timebound-priority" in fields:
            priority = read_priority(fields[b"timebound-priority"])
        if b"timebound-details" in fields:
            votes = read_votes(fields[b"timebound-details"])
        for place, item in enumerate(items):
            own = (item.key or None) if key is None else key if len(items) == 1 else f"{key}{OURS}{place}"
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
            check_key(item.key or "")
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
