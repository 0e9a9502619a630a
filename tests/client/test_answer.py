"""Replies as typed answers and typed errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.client.driving import reply

from timebound.client import Answer, BadRequest, Busy, CallFailed, DeadlineMissed, ModelFailed, NotFound, WrongAnswer
from timebound.client.answer import Timings, as_kind, read_answer, read_error
from timebound.client.message import Reply


@dataclass
class Mood:
    mood: str


class Strict(msgspec.Struct):
    mood: int


def answer(given: Reply, kind: Any = Any) -> Answer[Any]:
    return read_answer(given, as_kind(kind), key="a", elapsed=0.1, attempts=2, server="http://a")


def test_an_answer_says_how_it_came_about() -> None:
    found = answer(
        reply(
            body={"mood": "good"},
            timebound_quality="partial",
            timebound_members="2/3",
            timebound_source="joined",
            timebound_batch="7",
            timebound_version="4",
            timebound_votes='[{"member":"small","answer":1}]',
            server_timing="cdn;dur=9, queue;dur=1.5, prepare;dur=2, infer;dur=30.000, finish;dur=0.25",
            x_request_id="r1",
        ),
        Mood,
    )
    assert found.value == Mood("good")
    assert (found.quality, found.members, found.of_members, found.source) == ("partial", 2, 3, "joined")
    assert found.batch == found.batch_size == 7
    assert (found.version, found.votes) == ("4", [{"member": "small", "answer": 1}])
    assert found.timings == Timings(queue=0.0015, prepare=0.002, infer=0.03, finish=0.00025)
    assert (found.request_id, found.key, found.attempts, found.elapsed) == ("r1", "a", 2, 0.1)


def test_what_is_no_json_comes_as_bytes() -> None:
    picture = Reply(200, {"content-type": "image/png"}, b"\x89PNG")
    assert answer(picture).value == b"\x89PNG"
    assert answer(picture, bytes).value == b"\x89PNG"
    assert answer(reply(body={"a": 1}), bytes).value == b'{"a": 1}'


def test_an_answer_of_another_type_is_said_to_be() -> None:
    with pytest.raises(WrongAnswer, match=r"Expected `int`, got `str` - at `\$.mood`"):
        answer(reply(body={"mood": "good"}), Strict)
    with pytest.raises(WrongAnswer, match="it is image/png, no JSON"):
        answer(Reply(200, {"content-type": "image/png"}, b""), Strict)
    with pytest.raises(WrongAnswer, match="not as expected"):
        answer(reply(timebound_members="many"))


def test_an_error_of_a_proxy_is_one_too() -> None:
    error = read_error(Reply(502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>"))
    assert isinstance(error, Busy)
    assert (error.code, error.status, error.retry_after) == ("http_502", 502, None)
    dated = read_error(reply(503, retry_after="Wed, 18 Nov 2026 13:00:00 GMT"))
    assert dated.retry_after is None


@pytest.mark.parametrize(
    ("status", "said", "kind", "code", "detail"),
    [
        (503, ("InternalServerException", "Prediction failed"), ModelFailed, "model_failed", "Prediction failed"),
        (507, ("InternalServerException", "Out of resources"), ModelFailed, "model_failed", "Out of resources"),
        (503, ("ServiceUnavailableException", "the queue is full"), Busy, "http_503", "the queue is full"),
        (400, ("BadRequestException", "no such field"), BadRequest, "bad_input", "no such field"),
        (422, ("InternalServerException", "not that one"), BadRequest, "http_422", "not that one"),
        (404, ("ModelNotFoundException", "Model not found: a"), NotFound, "unknown_model", "Model not found: a"),
        (504, ("RequestTimeoutException", "too late"), DeadlineMissed, "deadline_missed", "too late"),
    ],
)
def test_an_error_in_torchserves_form_keeps_its_text_and_its_meaning(
    status: int, said: tuple[str, str], kind: type[CallFailed], code: str, detail: str
) -> None:
    error = read_error(reply(status, {"code": status, "type": said[0], "message": said[1]}))
    assert type(error) is kind
    assert (error.code, error.detail, error.status) == (code, detail, status)


def test_an_error_of_the_open_inference_protocol_keeps_its_text() -> None:
    error = read_error(reply(400, {"error": "input 'x' is missing"}))
    assert isinstance(error, BadRequest)
    assert (error.code, error.detail) == ("http_400", "input 'x' is missing")


@pytest.mark.parametrize("body", [b"[1]", b"[" * 100_000, b'{"detail":[{"msg":"no"}],"code":7}', b"\xff"])
def test_an_error_of_any_other_form_is_told_by_its_status(body: bytes) -> None:
    error = read_error(Reply(422, {"content-type": "application/json"}, body))
    assert isinstance(error, BadRequest)
    assert (error.code, error.detail) == ("http_422", "the server, or a proxy in front of it, answered 422")
