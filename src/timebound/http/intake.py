"""Who is asking, what, under which key and until when: the one way in, the same for every protocol.

`Intake.take` has the headers and the whole body of a request, and the route they came by. The route's surface reads the
items; here each becomes a `Question`, and what comes of them is gathered and given back to the surface to write. It
knows neither sockets nor ASGI: whoever calls brings a `respond` that is called exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import count
from typing import Any, Protocol

from timebound.admission import Client, Hold
from timebound.admission.peers import peer_of
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.events import Answered, Events, Refused
from timebound.http.flow import Respond
from timebound.http.gradual import is_heavy, write_in_steps
from timebound.http.headers import LIMITS, WISHES, read_wishes, timeout_s
from timebound.http.large import Large
from timebound.http.problems import status_of
from timebound.http.routes import Route
from timebound.http.surfaces.base import Asked, Item, Read, Reply
from timebound.reading import LIGHT, Looked
from timebound.requests.identity import OURS, check_key
from timebound.types import Deliver, Question, Result, Trace

Headers = Collection[tuple[bytes, bytes]]
Fields = Mapping[bytes, bytes]
Around = Callable[[Fields, Respond], tuple[Respond, Trace | None]]

log = logging.getLogger("timebound.http")

_MAX_ID = 128
AT_ONCE = 32
"""Items of one request that are submitted in one turn of the event loop; each step of a larger one has its own turn."""


class Requests(Protocol):
    """Where questions go; the dispatcher."""

    def submit(self, question: Question, deliver: Deliver) -> Any: ...
    def gone(self, attempt: Any, address: str) -> None: ...


class Intake:
    """Takes requests to models in; raises nothing, whatever comes."""

    def __init__(
        self,
        requests: Requests,
        *,
        clock: Clock,
        events: Events,
        cap_s: float,
        around: Around | None = None,
        is_behind: Callable[[float], bool] = lambda now: False,
        large: Large | None = None,
    ) -> None:
        self.submit = requests.submit
        self.gone = requests.gone
        self.clock = clock
        self.events = events
        self._is_behind = is_behind
        self._around = around
        self._large = large
        self._cap_s = cap_s
        self._prefix = os.urandom(4).hex()
        self._number = count(1)

    def take(
        self,
        route: Route,
        headers: Headers,
        body: bytes,
        respond: Respond,
        *,
        client: Client | None = None,
        hold: Hold | None = None,
        unread_s: Callable[[], float] | None = None,
        age_s: float = 0.0,
        address: str = "",
    ) -> Callable[[], None] | None:
        """Take one request in; `respond` is called once: now for a refusal, else when its results are there.

        If something is returned, call it when the client leaves before that. `hold` stands for the body's memory,
        `unread_s` tells how long the request was here before it was read, `age_s` how long ago a proxy that is believed
        had it. `address` is the client's.
        """
        arrived = self.clock.now() - age_s
        if unread_s is not None and not age_s and self._is_behind(arrived):
            arrived -= unread_s()
        fields, trace = dict(headers), None
        if self._around is not None:
            respond, trace = self._around(fields, respond)
        request_id = self.request_id(fields) if b"x-request-id" in fields else f"{self._prefix}-{next(self._number):x}"
        taken = Taken(self, route, request_id, arrived=arrived, respond=respond, client=client)
        taken.address, taken.trace = address, trace
        self._go_on(taken, headers, fields, body, hold)
        return None if taken.is_over else taken.leave

    def _go_on(
        self, taken: Taken, headers: Headers, fields: Fields, body: bytes, hold: Hold | None, *looked: Looked | Read
    ) -> None:
        """Read it and ask what it asks, now or once it was looked at elsewhere."""
        route = taken.route
        try:
            if not looked:
                if taken.client is not None:
                    taken.let_in(taken.client)
                is_suspect = len(body) > LIGHT or (route.apart is not None and b"content-encoding" in fields)
                go_on = partial(self._go_on, taken, headers, fields, body, hold) if is_suspect else None
                if go_on is not None and self._large is not None and self._large.look(taken, headers, body, go_on):
                    return
            taken.asked = asked = (
                route.surface.read(fields, body, *looked) if looked else route.surface.read(fields, body)
            )
            limit_s = min(asked.timeout_s or route.deadline_s, self._cap_s)
            if not LIMITS.keys().isdisjoint(fields):
                limit_s = timeout_s(headers, limit_s, min(asked.timeout_s or math.inf, self._cap_s))
            if asked.wrap is not None:
                taken.respond = asked.wrap(taken.respond, taken.arrived + limit_s, self.clock)
            taken.ask(fields, taken.arrived + limit_s, asked.hold or hold)
        except RequestError as error:
            taken.refuse(error)
        except Exception:
            log.exception("a request broke the gateway", extra={"request_id": taken.id})
            taken.refuse(RequestError("something broke in the server; its log has the details"))

    def request_id(self, fields: Fields) -> str:
        """The client's own, or one made up."""
        given = fields.get(b"x-request-id")
        if given and len(given) <= _MAX_ID and given.isascii() and given.decode().isprintable():
            return given.decode()
        return f"{self._prefix}-{next(self._number):x}"


class Taken:
    """One request that was taken in, until all its items have their results."""

    __slots__ = (
        "_attempts", "_intake", "_missing", "_questions", "_results", "address", "arrived", "asked",
        "client", "id", "is_over", "on_close", "respond", "route", "trace",
    )  # fmt: skip

    def __init__(
        self, intake: Intake, route: Route, request_id: str, *, arrived: float, respond: Respond, client: Client | None
    ) -> None:
        self._intake = intake
        self.route = route
        self.id, self.address = request_id, ""
        self.trace: Trace | None = None
        self.arrived = arrived
        self.respond = respond
        self.client = client
        self.on_close: Callable[[], None] | None = None
        self.asked: Asked | None = None
        self._questions: list[Question] = []
        self._results: list[Result | RequestError] = []
        self._attempts: list[Any] = []
        self._missing = 0
        self.is_over = False

    def let_in(self, client: Client) -> None:
        """Count it for the holder of its API key; raises `RequestError` if that may not ask this now."""
        client.check_model(self.route.model)
        client.count(self.arrived)
        self.on_close = client.enter()

    def ask(self, fields: Fields, deadline: float, hold: Hold | None) -> None:
        """Submit every item; raises `RequestError` if the headers are wrong."""
        assert self.asked is not None
        items = self.asked.items
        if not items:
            raise RequestError("the request has no items", code="empty_body")
        if self.client is not None and len(items) > 1:
            self.client.count(self.arrived, len(items) - 1)  # one was counted on the way in
        usual = (None, self.asked.priority, False)
        key, priority, votes = usual if WISHES.isdisjoint(fields) else read_wishes(fields, self.asked.priority)
        for place, item in enumerate(items):
            own = (item.key or None) if key is None else key if len(items) == 1 else f"{key}{OURS}{place}"
            question = self._question(item, own, deadline, priority)
            question.wants_votes, question.hold, question.trace = votes, hold, self.trace
            question.follow = self.asked.follow
            self._questions.append(question)
        self._missing = len(items)
        self._results = [_NO_RESULT] * len(items)
        asyncio.get_running_loop().call_soon(self._submit, 0) if len(items) > AT_ONCE else self._submit(0)

    def _submit(self, first: int) -> None:
        """Submit the items from this place on; of many only some in one turn of the event loop, others wait too."""
        for place in range(first, min(len(self._questions), first + AT_ONCE)):
            try:
                attempt = self._intake.submit(self._questions[place], partial(self._put, place))
            except RequestError as error:
                self._put(place, error)
            else:
                if not self.is_over:
                    self._attempts.append(attempt)
        if len(self._questions) > first + AT_ONCE and not self.is_over:
            asyncio.get_running_loop().call_soon(self._submit, first + AT_ONCE)

    def _question(self, item: Item, key: str | None, deadline: float, priority: int | None) -> Question:
        route, client = self.route, self.client
        fingerprint = b""
        if key is not None or route.identity.is_by_content:
            check_key(item.key or "")
            key, fingerprint = route.identity.of(key, item.body, item.fingerprint)
        question = Question(
            self.id, route.model, item.body, self.arrived, deadline, key, item.size, priority or 0, fingerprint
        )
        question.served, question.version, question.address = route.served, route.version, self.address
        if client is not None:
            question.client = client.name
            question.priority = client.priority(priority)
            question.key = key and client.own(key)
        return question

    def leave(self) -> None:
        """The client has left."""
        if not self.is_over:
            self._close()
            for attempt in self._attempts:
                self._intake.gone(attempt, peer_of(self.address))
            self._attempts, self._questions = [], []  # what was not submitted yet is not

    def refuse(self, error: RequestError) -> None:
        """Nothing of it was let in; or something broke, and then nobody waits for what was."""
        if not self.is_over:
            self.leave()
            self.answer(self.route.surface.refuse(error, self.id), error)

    def _put(self, place: int, result: Result | RequestError) -> None:
        if not self.is_over:
            self._results[place] = result
            self._missing -= 1
            if not self._missing:
                asyncio.get_running_loop().call_soon(self._write) if len(self._results) > AT_ONCE else self._write()

    def _write(self) -> None:
        if self.is_over:
            return
        self._attempts = []  # they know this; a cycle that only the collector would end
        assert self.asked is not None
        if self.route.gradual is not None and is_heavy(self._results):
            steps = self.route.gradual.in_steps(self.asked, self._questions, self._results)
            write_in_steps(self, steps, self._questions[0].deadline, self._intake.clock)
            return
        try:
            reply = self.route.surface.write(self.asked, self._questions, self._results)
        except Exception:
            reply = self.broken()
        self.answer(reply)

    def broken(self) -> Reply:
        """What is answered where the answer cannot be written."""
        log.exception("an answer could not be written", extra={"request_id": self.id})
        broken = RequestError("something broke in the server; its log has the details")
        self._results = [broken] * len(self._results)
        return self.route.surface.refuse(broken, self.id)

    def _close(self) -> None:
        self.is_over = True
        if self.on_close is not None:
            self.on_close()
            self.on_close = None

    def answer(self, reply: Reply, refused: RequestError | None = None) -> None:
        """Write the one answer, and tell what became of each item; `refused` if nothing of it was let in."""
        self._close()
        status, head, body = reply
        self.respond(status, head, body)
        seconds = self._intake.clock.now() - self.arrived
        if refused is not None:
            self._tell(refused, None, status, seconds)
        elif len(self._results) == 1:
            self._tell(self._results[0], self._questions[0], status, seconds)
        elif len(self._results) > AT_ONCE:
            asyncio.get_running_loop().call_soon(self._tell_each, seconds, 0)
        else:
            self._tell_each(seconds, 0)

    def _tell_each(self, seconds: float, first: int) -> None:
        """Tell of the items from this place on; of many only some in one turn of the event loop."""
        some = slice(first, first + AT_ONCE)
        for result, question in zip(self._results[some], self._questions[some], strict=True):
            code = result.code if isinstance(result, RequestError) else result.outcome.code
            self._tell(result, question, status_of(code) if code else 200, seconds)
        if len(self._results) > first + AT_ONCE:
            asyncio.get_running_loop().call_soon(self._tell_each, seconds, first + AT_ONCE)

    def _tell(self, result: Result | RequestError, asked: Question | None, status: int, seconds: float) -> None:
        if not isinstance(result, RequestError) and asked is not None:
            self._intake.events.put(Answered(asked, result, status, seconds))
        elif isinstance(result, RequestError):
            whose = "" if self.client is None else self.client.name
            facts = (result.code, status, seconds, whose, self.address, asked, result)
            self._intake.events.emit(Refused(self.route.model, self.id, *facts))


_NO_RESULT = RequestError("no result yet")
