"""Answers as events: what the last one says, and that nothing in an answer can pass for an event."""

from __future__ import annotations

import json

import pytest

from timebound.http.flow import Flow
from timebound.http.surfaces.base import Asked, Item
from timebound.http.surfaces.native import Native
from timebound.http.surfaces.progressive import MOST_RAW, Events, follow
from timebound.types import ModelInfo, Outcome, Part, Quality, Question, Result

QUESTION = Question("q1", "mood", b"{}", 0.0, 1.0)


class Client:
    """What came to a client."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.is_slow = False
        self.is_over = False

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        self.answers.append((status, head, body))
        if isinstance(body, Flow):
            body.open(self)

    def take(self, piece: bytes, *, is_last: bool) -> None:
        self.pieces.append(piece)
        self.is_over = is_last


def asked(client: Client) -> Events:
    events = Events()
    events.wrap(client.respond, 0.0, None)  # type: ignore[arg-type]
    return events


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (b"text/event-stream", True),
        (b"application/json, text/event-stream;q=0.5", True),
        (b"TEXT/Event-Stream", True),
        (b"text/event-stream;q=0", False),
        (b"text/event-stream;Q=0", False),
        (b"text/event-streams", False),
        (b"*/*", False),
        (b";;,,=text/event-stream" * 300, False),
    ],
)
def test_events_are_for_clients_that_take_them(accept: bytes, *, takes: bool) -> None:
    question = Asked((Item(b"{}"),))
    follow(question, accept)
    assert (question.follow is not None) is takes


def test_a_model_is_asked_for_events_in_any_case() -> None:
    asked = Native(ModelInfo(name="mood")).read({b"accept": b"TEXT/EVENT-STREAM"}, b"{}")
    assert asked.follow is not None


@pytest.mark.parametrize("body", [b'{"a":\n\nevent: error\ndata: 1}', b"{\r\n}\r\r", b"\n\n\n"])
def test_line_breaks_in_an_answer_end_no_event(body: bytes) -> None:
    client = Client()
    asked(client).better(QUESTION, Result(Outcome(body)))
    (event,) = client.pieces
    assert (event.count(b"\n"), event.count(b"\r"), event[-2:]) == (3, 0, b"\n\n")


def test_an_intermediate_answer_is_left_out_for_a_client_that_lags_but_no_piece_and_no_end_is() -> None:
    client = Client()
    events = asked(client)
    events.better(QUESTION, Result(Outcome(b"1"), Quality.PARTIAL))
    client.is_slow = True
    events.better(QUESTION, Result(Outcome(b"2"), Quality.PARTIAL))
    events.better(QUESTION, [Part("json", b"3")])
    last = events.last(QUESTION, Result(Outcome(b"4")))
    assert last is not None
    events.respond(*last)
    assert [line.split(b"\n")[0] for line in client.pieces] == [b"event: answer", b"event: piece", b"event: final"]
    assert client.is_over


def test_a_large_answer_that_is_no_json_is_an_ordinary_answer() -> None:
    large = Result(Outcome(bytes(MOST_RAW + 1), media="image/png"))
    assert asked(Client()).last(QUESTION, large) is None
    client = Client()
    events = asked(client)
    events.better(QUESTION, [Part("bytes", b"1")])
    last = events.last(QUESTION, Result(Outcome(b"", media="image/png")))
    assert last is not None
    assert json.loads(last[2].split(b"data: ")[1])["pieces"] == 1
