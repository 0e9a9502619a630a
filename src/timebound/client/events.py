"""Answers that come bit by bit, in types: a reader that hands on events as they arrive, and what one says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from timebound.client.answer import as_kind, read_error
from timebound.client.errors import WrongAnswer
from timebound.client.message import Reader, Reply
from timebound.types import Quality, Source

Value = TypeVar("Value")

ACCEPT = b"accept: text/event-stream\r\n"
_MEDIA = "text/event-stream"


class Event(msgspec.Struct, Generic[Value], frozen=True, kw_only=True):
    """A better answer (`kind` is "answer"), a piece of one ("piece"), or the last word ("final")."""

    kind: str
    value: Value
    """What its JSON says, or bytes; None in the last event after pieces, which are the answer."""
    quality: Quality = Quality.PARTIAL
    source: Source = Source.COMPUTED
    members: int = 1
    of_members: int = 1
    reason: str = ""
    """Why the last answer is less than the full one."""

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self.kind == "final"


class _Said(msgspec.Struct):
    quality: Quality = Quality.PARTIAL
    source: Source = Source.COMPUTED
    members: int = 1
    of_members: int = 1
    answer: msgspec.Raw = msgspec.Raw()
    piece: msgspec.Raw = msgspec.Raw()
    data: bytes | None = None
    reason: str = ""


class EventReader(Reader):
    """Gives a reply as soon as its head promises events; `take` has those that have come."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""

    @property
    def goes_on(self) -> bool:
        """Whether events follow that are not here yet."""
        return self._reply is None

    def feed(self, data: bytes) -> Reply | None:
        reply = super().feed(data)
        if reply is None and self._has_head and self._headers.get("content-type", "").startswith(_MEDIA):
            return Reply(self._parser.get_status_code(), self._headers, b"")
        return reply

    def take(self) -> list[bytes]:
        """The events that are whole, as they came."""
        *events, self._rest = (self._rest + b"".join(self._parts)).split(b"\n\n")
        self._parts = []
        return events


def read_events(reply: Reply, kind: Any) -> Iterator[Event[Any]]:
    """What a whole reply says in events."""
    if not reply.headers.get("content-type", "").startswith(_MEDIA):
        yield Event(
            kind="final", value=as_kind(kind)(reply), quality=Quality(reply.headers.get("timebound-quality", "full"))
        )
    else:
        yield from (read_event(event, kind, reply) for event in reply.body.split(b"\n\n") if event)


def read_event(event: bytes, kind: Any, reply: Reply) -> Event[Any]:
    """What one event says; raises `CallFailed` if that is an error."""
    fields = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
    name, data = fields.get(b"event", b"").decode(), fields.get(b"data", b"")
    if name == "error":
        status = msgspec.json.decode(data).get("status", 500)
        raise read_error(Reply(status, reply.headers, data))
    try:
        said = msgspec.json.decode(data, type=_Said)
        raw = said.piece if name == "piece" else said.answer
        value: Any = said.data  # msgspec reads base64 where bytes are meant
        if bytes(raw):
            value = msgspec.json.decode(raw, type=Any if name == "piece" else kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WrongAnswer(f"an event is not as expected: {error}", status=reply.status) from None
    return Event(
        kind=name,
        value=value,
        quality=said.quality,
        source=said.source,
        members=said.members,
        of_members=said.of_members,
        reason=said.reason,
    )
