"""Answers as events (`text/event-stream`) for a client that takes them: each better one, then the last or an error."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.http.flow import Flow, Respond
from timebound.http.problems import from_error
from timebound.http.surfaces.base import Asked, Reply
from timebound.types import Part, Quality, Question, Result, Source

EVENTS = b"text/event-stream"
_HEAD = b"content-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\nx-request-id: %b\r\n"
MOST_RAW = 1 << 18
"""Bytes of an answer that is not JSON and still goes into an event, as base64."""


class Event(msgspec.Struct, omit_defaults=True):
    """What stands in one event: an answer, and how it came about."""

    quality: Quality
    source: Source
    members: int
    of_members: int
    answer: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """The answer, if it is JSON."""
    data: str | msgspec.UnsetType = msgspec.UNSET
    """Any other answer, as base64."""
    media: str = ""
    pieces: int = 0
    """How many pieces were sent: they are the answer, which is not repeated."""
    reason: str = ""
    """Why it is less than the full answer, in the last event."""


def follow(asked: Asked, accept: bytes) -> None:
    """Have this answered as events, if that is what the client takes."""
    if _takes_events(accept):
        events = Events()
        asked.wrap, asked.follow, asked.context = events.wrap, events.better, events


class Events:
    """One request's events. The first better answer begins the stream; until then errors are ordinary answers."""

    def __init__(self) -> None:
        self._respond: Respond | None = None
        self._flow: Flow | None = None
        self._pieces = 0

    def wrap(self, respond: Respond, deadline: float, clock: Clock) -> Respond:
        """Comes between the request and its client."""
        self._respond = respond
        return self.respond

    def better(self, question: Question, result: Result | list[Part]) -> None:
        """Pieces; or an answer that may be followed by a better one, left out if the last ones are not read yet."""
        if self._respond is None:
            return
        if isinstance(result, list):
            event: bytes | None = b"".join(map(_piece, result))
            self._pieces += len(result)
        else:
            event = None if self._flow is not None and self._flow.is_slow else _written("answer", result)
        if event is None:
            return
        if self._flow is None:
            self._flow = Flow()
            self._respond(200, _head(question), self._flow)
        self._flow.put(event)

    def last(self, question: Question, result: Result) -> Reply | None:
        """The answer that ends the stream; None if it is none for an event and nothing was sent yet."""
        event = _written("final", result, self._pieces)
        if event is None and self._flow is None:
            return None
        if event is None:
            detail = f"the answer is not JSON and over {MOST_RAW} bytes, too much for an event; ask without events"
            event = _error(from_error(RequestError(detail, code="model_failed"), question.id))
        return 200, _head(question) + b"content-length: %d\r\n" % len(event), event

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """The end: what `last` gave, or an error."""
        respond, self._respond = self._respond, None
        if self._flow is not None:
            self._flow.put(body if status == 200 else _error(body), is_last=True)
        elif respond is not None:
            respond(status, head, body)


def _head(question: Question) -> bytes:
    version = b"timebound-version: %b\r\n" % question.version.encode() if question.version else b""
    return _HEAD % question.id.encode() + version


def _piece(part: Part) -> bytes:
    if part.kind == "bytes":
        return _event("piece", b'{"data":"%b"}' % b64encode(part.data))
    return _event("piece", b'{"piece":%b}' % part.data)


def _written(name: str, result: Result, pieces: int = 0) -> bytes | None:
    """An event with this answer; None if that is too large a body that is not JSON."""
    outcome = result.outcome
    event = Event(result.quality, result.source, result.members, result.of_members)
    event.reason = result.reason if name == "final" else ""
    if pieces:
        event.pieces = pieces
    elif is_json(outcome.media):
        event.answer = msgspec.Raw(outcome.body)
    elif len(outcome.body) > MOST_RAW:
        return None
    else:
        event.data, event.media = b64encode(outcome.body).decode(), outcome.media
    return _event(name, msgspec.json.encode(event))


def is_json(media: str) -> bool:
    """Whether this is JSON, whatever it says besides."""
    kind = media.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _error(problem: bytes) -> bytes:
    return _event("error", problem)


def _event(name: str, data: bytes) -> bytes:
    # In JSON a line break is only ever a space; in an event it would end the line.
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data.replace(b"\n", b" ").replace(b"\r", b" "))


def _takes_events(accept: bytes) -> bool:
    for part in accept.lower().split(b","):  # neither media types nor names of parameters have a case
        media, *parameters = (each.strip() for each in part.split(b";"))
        if media == EVENTS:
            return not any(each in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for each in parameters)
    return False
