"""The one way in: from headers and body to questions, and from their results to bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.clock import ManualClock
from timebound.errors import DeadlineMissed, Refusal
from timebound.events import Answered, Events, Refused
from timebound.http.gradual import HEAVY
from timebound.http.intake import AT_ONCE, Intake
from timebound.http.routes import Route
from timebound.http.surfaces.base import Surface
from timebound.http.surfaces.lists import Lists
from timebound.http.surfaces.native import Native
from timebound.http.surfaces.oip import OpenInference
from timebound.http.surfaces.predict import Predict
from timebound.types import Body, Deliver, ModelInfo, Outcome, Quality, Question, Result, Source, Tensor, Timing
from timebound.workers.failures import failure


class Picture(msgspec.Struct):
    id: str
    image: str = ""


INFO = ModelInfo(name="digits", deadline_s=1.0, key="id", request_schema=msgspec.json.schema(Picture))
RAW = ModelInfo(name="raw", deadline_s=1.0, body=Body.RAW)
BODY = b'{"id": "k1"}'


class World:
    """An intake whose requests' room keeps what was let in, and the answers that were written."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.clock = ManualClock(50.0)
        self.accepted: list[tuple[Question, Deliver]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.left: list[Question] = []
        self.seen: list[Any] = []
        self._refusal = refusal
        events = Events()
        events.on(Answered, self.seen.append)
        events.on(Refused, self.seen.append)
        self.intake = Intake(self, clock=self.clock, events=events, cap_s=60.0)

    def submit(self, question: Question, deliver: Deliver) -> Question:
        if self._refusal is not None:
            raise self._refusal
        self.accepted.append((question, deliver))
        return question

    def gone(self, attempt: Question, address: str) -> None:
        self.left.append(attempt)

    def _respond(self, status: int, head: bytes, body: bytes) -> None:
        assert head.endswith(b"\r\n")
        lines = [(name, value) for name, _, value in (line.partition(": ") for line in head.decode().splitlines())]
        self.answers.append((status, dict(lines), body))

    def post(self, body: bytes = BODY, *headers: tuple[bytes, bytes], info: ModelInfo = INFO) -> None:
        self.intake.take(Route(info, Native(info)), headers, body, self._respond)

    def request(self) -> Question:
        ((request, _),) = self.accepted
        return request

    def deliver(self, result: Any) -> None:
        ((_, deliver),) = self.accepted
        deliver(result)

    def problem(self) -> tuple[int, dict[str, Any]]:
        ((status, headers, body),) = self.answers
        assert headers["content-type"] == "application/problem+json"
        assert int(headers["content-length"]) == len(body)
        return status, msgspec.json.decode(body)


def test_a_post_becomes_a_request_at_the_gate() -> None:
    world = World()
    world.post()
    request = world.request()
    assert (request.model, request.body, request.key) == ("digits", BODY, "k1")
    assert (request.arrived, request.deadline) == (50.0, 51.0)
    assert world.answers == []


def test_a_header_sets_the_deadline() -> None:
    world = World()
    world.post(BODY, (b"timebound-timeout-ms", b"250"))
    assert world.request().deadline == 50.25


def test_an_answer_is_written_with_how_it_came_about() -> None:
    world = World()
    world.post(BODY, (b"x-request-id", b"r-1"))
    outcome = Outcome(b'{"answer":7}')
    timing = Timing(0.001, 0.002, 0.003)
    world.deliver(Result(outcome, Quality.PARTIAL, Source.JOINED, 2, 3, 16, 0.004, timing))
    assert world.answers == [
        (
            200,
            {
                "content-type": "application/json",
                "content-length": "12",
                "x-request-id": "r-1",
                "timebound-quality": "partial",
                "timebound-members": "2/3",
                "timebound-source": "joined",
                "timebound-batch": "16",
                "server-timing": "queue;dur=4.000, prepare;dur=1.000, infer;dur=2.000, finish;dur=3.000",
            },
            b'{"answer":7}',
        )
    ]


def test_an_item_that_failed_has_neither_quality_nor_votes() -> None:
    world = World()
    world.post(BODY, (b"timebound-details", b"votes"))
    outcome = Outcome(b'{"detail":"too small","field":null}', "bad_input")
    world.deliver(Result(outcome, members=3, of_members=3, batch_size=2, votes='[{"member":"a"}]'))
    status, headers, _ = world.answers[0]
    assert (status, headers["timebound-batch"]) == (422, "2")
    assert not {"timebound-quality", "timebound-members", "timebound-votes"} & headers.keys()


def test_votes_are_told_only_to_who_asked() -> None:
    for headers, told in (((), None), (((b"timebound-details", b"votes"),), '[{"member":"a"}]')):
        world = World()
        world.post(BODY, *headers)
        assert world.request().wants_votes is bool(headers)
        world.deliver(Result(Outcome(b"{}"), votes='[{"member":"a"}]'))
        assert world.answers[0][1].get("timebound-votes") == told


def test_an_answer_without_votes_has_no_header_for_them() -> None:
    world = World()
    world.post(BODY, (b"timebound-details", b"votes"))
    world.deliver(Result(Outcome(b"{}")))
    assert "timebound-votes" not in world.answers[0][1]


def test_unknown_details_are_a_400() -> None:
    world = World()
    world.post(BODY, (b"timebound-details", b"gossip"))
    status, problem = world.problem()
    assert (status, problem["code"], problem["field"]) == (400, "bad_header", "timebound-details")


def test_bytes_are_answered_with_their_own_media_type() -> None:
    world = World()
    world.post(b"\x00", info=RAW)
    world.deliver(Result(Outcome(b"\x89PNG", media="application/octet-stream")))
    ((status, headers, body),) = world.answers
    assert (status, headers["content-type"], body) == (200, "application/octet-stream", b"\x89PNG")


def test_an_items_own_error_is_a_problem_with_the_batchs_headers() -> None:
    world = World()
    world.post(BODY, (b"x-request-id", b"r-1"))
    world.deliver(Result(failure("bad_input", "too dark", "image")))
    status, shown = world.problem()
    assert (status, shown["code"], shown["field"], shown["request_id"]) == (422, "bad_input", "image", "r-1")
    assert world.answers[0][1]["timebound-batch"] == "1"


def test_an_error_instead_of_a_result_is_a_problem() -> None:
    world = World()
    world.post(BODY, (b"x-request-id", b"r-1"))
    world.clock.advance(0.99)
    world.deliver(DeadlineMissed("the deadline came in the queue"))
    status, shown = world.problem()
    assert (status, shown["code"], shown["request_id"]) == (504, "deadline_missed", "r-1")
    (event,) = world.seen
    assert (event.model, event.code, event.status, event.seconds) == (
        "digits",
        "deadline_missed",
        504,
        pytest.approx(0.99),
    )


def test_a_refusal_at_the_gate_is_answered_at_once_with_when_to_come_back() -> None:
    world = World(Refusal("2 requests are waiting already", code="queue_full", retry_after_s=1.5))
    world.post()
    status, shown = world.problem()
    assert (status, shown["code"]) == (429, "queue_full")
    assert world.answers[0][1]["retry-after"] == "2"


def test_nobody_comes_in_while_the_server_drains() -> None:
    world = World(Refusal("the server is shutting down", code="draining", retry_after_s=1))
    world.post()
    status, shown = world.problem()
    assert (status, shown["code"]) == (503, "draining")
    assert world.accepted == []


def test_an_answer_is_told_to_those_who_listen() -> None:
    world = World()
    world.post()
    world.clock.advance(0.5)
    world.deliver(Result(Outcome(b"1")))
    (event,) = world.seen
    assert (event.request, event.status, event.seconds) == (world.request(), 200, 0.5)


@pytest.mark.parametrize(
    ("body", "code", "status", "field"),
    [
        (b"", "empty_body", 400, None),
        (b"{", "malformed_json", 400, None),
        (b"{}", "bad_input", 422, "id"),
        (b'{"id": 7}', "bad_input", 422, "id"),
        (b"[]", "bad_input", 422, None),
    ],
)
def test_a_body_that_can_be_seen_to_be_wrong_never_reaches_the_gate(
    body: bytes, code: str, status: int, field: str | None
) -> None:
    world = World()
    world.post(body)
    answered, shown = world.problem()
    assert (answered, shown["code"], shown.get("field")) == (status, code, field)
    assert world.accepted == []
    assert [type(event) for event in world.seen] == [Refused]


def test_a_bad_time_limit_names_its_header() -> None:
    world = World()
    world.post(BODY, (b"grpc-timeout", b"soon"))
    status, shown = world.problem()
    assert (status, shown["code"], shown["field"]) == (400, "bad_header", "grpc-timeout")


@pytest.mark.parametrize(
    "media",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b"Application/JSON",
        b"text/json",
        b"application/ld+json",
    ],
)
def test_every_spelling_of_json_is_taken(media: bytes) -> None:
    world = World()
    world.post(BODY, (b"content-type", media))
    assert len(world.accepted) == 1


@pytest.mark.parametrize("media", [b"text/plain", b"multipart/mixed; boundary=x", b"", b"\xff"])
def test_another_media_type_is_refused_by_a_typed_model(media: bytes) -> None:
    world = World()
    world.post(BODY, (b"content-type", media))
    status, shown = world.problem()
    assert (status, shown["code"]) == (415, "unsupported_media_type")
    assert "send application/json" in shown["detail"]


def test_a_raw_model_takes_any_media_type_and_any_body_but_an_empty_one() -> None:
    world = World()
    world.post(b"\xff{", (b"content-type", b"image/png"), info=RAW)
    assert (world.request().body, world.request().key) == (b"\xff{", None)
    empty = World()
    empty.post(b"", info=RAW)
    assert empty.problem()[1]["code"] == "empty_body"


@pytest.mark.parametrize("info", [INFO, RAW])
def test_the_idempotency_key_comes_before_the_bodys_own(info: ModelInfo) -> None:
    world = World()
    world.post(BODY, (b"idempotency-key", b"header-\xe9"), info=info)
    assert world.request().key == "header-é"


def test_a_request_keeps_the_id_it_brings() -> None:
    world = World()
    world.post(BODY, (b"x-request-id", b"abc 123"))
    assert world.request().id == "abc 123"


@pytest.mark.parametrize("given", [None, b"", b"a" * 129, b"caf\xc3\xa9", b"a\x00b", b"a\r\nset-cookie: x"])
def test_a_request_without_a_usable_id_gets_one(given: bytes | None) -> None:
    world = World()
    for _ in range(2):
        world.post(BODY, *([(b"x-request-id", given)] if given is not None else []))
    ids = [request.id for request, _ in world.accepted]
    assert len(set(ids)) == 2
    assert all(made.isascii() and made.isprintable() and made for made in ids)


NAMES = [b"content-type", b"x-request-id", b"idempotency-key", b"timebound-timeout-ms", b"grpc-timeout"]
BODIES = st.binary(max_size=30) | st.sampled_from([BODY, b'{"id": {"a": "\xff"}}', b'{"id": "\\ud800"}'])


@given(BODIES, st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=12)), max_size=3))
def test_whatever_comes_in_is_either_accepted_or_answered_once(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    world = World()
    world.post(body, *headers)
    assert len(world.accepted) + len(world.answers) == 1


def test_a_broken_value_around_a_nested_key_is_answered_too() -> None:
    class Nested(msgspec.Struct):
        meta: dict[str, str]

    world = World()
    info = ModelInfo(name="m", key="meta.id", request_schema=msgspec.json.schema(Nested))
    world.post(b'{"meta": {"id": "\xff"}}', info=info)
    status, shown = world.problem()
    assert (status, shown["code"]) == (400, "malformed_json")


def test_the_priority_of_a_request_is_read_from_its_header() -> None:
    world = World()
    world.post(BODY, (b"timebound-priority", b"-2"))
    assert world.request().priority == -2


@pytest.mark.parametrize("value", [b"high", b"1.5", b"1000", b""])
def test_a_priority_that_cannot_be_read_is_a_bad_header(value: bytes) -> None:
    world = World()
    world.post(BODY, (b"timebound-priority", value))
    ((status, _, body),) = world.answers
    assert (status, msgspec.json.decode(body)["field"]) == (400, "timebound-priority")


def test_whoever_started_a_request_can_say_that_its_client_left() -> None:
    world = World()
    leave = world.intake.take(Route(INFO, Native(INFO)), [], BODY, world._respond)
    assert leave is not None
    leave()
    assert [request.key for request in world.left] == ["k1"]


@pytest.mark.parametrize("value", [b"--1", b"-", b"1-"])
def test_a_priority_with_odd_signs_is_a_bad_header_too(value: bytes) -> None:
    world = World()
    world.post(BODY, (b"timebound-priority", value))
    assert [status for status, _, _ in world.answers] == [400]


def test_an_empty_idempotency_key_is_none() -> None:
    world = World()
    world.post(BODY, (b"idempotency-key", b" "))
    assert world.request().key == "k1"


def test_a_number_larger_than_any_float_is_a_size_like_others() -> None:
    class Many(msgspec.Struct):
        n: int

    world = World()
    info = ModelInfo(name="many", request_schema=msgspec.json.schema(Many), size_field="n")
    world.post(b'{"n": 1' + b"0" * 400 + b"}", info=info)
    assert world.answers == []
    assert world.request().size == 1e15


TENSORS = ModelInfo(name="t", inputs=[Tensor("x", "INT64", [-1]), Tensor("y", "INT64", [-1], True)])


def many(count: int, *names: str) -> bytes:
    inputs = [{"name": name, "datatype": "INT64", "shape": [count], "data": [1] * count} for name in names]
    return msgspec.json.encode({"inputs": inputs})


def test_a_request_of_many_items_leaves_turns_of_the_event_loop_to_others() -> None:
    async def ask() -> None:
        world = World()
        world.intake.take(Route(TENSORS, OpenInference(TENSORS)), (), many(3 * AT_ONCE, "x"), world._respond)
        seen = [len(world.accepted)]
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(len(world.accepted))
        assert seen == [0, AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]
        for _, deliver in world.accepted:
            deliver(DeadlineMissed("too late"))
        assert (world.answers, world.seen) == ([], [])
        await asyncio.sleep(0)
        assert ([status for status, _, _ in world.answers], world.seen) == ([504], [])
        told = []
        for _ in range(3):
            await asyncio.sleep(0)
            told.append(len(world.seen))
        assert told == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]

    asyncio.run(ask())


def test_what_was_not_submitted_when_the_client_left_never_is() -> None:
    async def ask() -> None:
        world = World()
        leave = world.intake.take(Route(TENSORS, OpenInference(TENSORS)), (), many(3 * AT_ONCE, "x"), world._respond)
        await asyncio.sleep(0)
        assert leave is not None
        leave()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (len(world.accepted), len(world.left), world.answers) == (AT_ONCE, AT_ONCE, [])

    asyncio.run(ask())


def test_json_with_the_values_of_many_items_is_read_elsewhere() -> None:
    surface = OpenInference(TENSORS)
    assert surface.elsewhere({}, many(256, "x"), 10**6) is None
    assert surface.elsewhere({}, many(256, "x", "y"), 10**6) is not None
    one = msgspec.json.encode({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 900], "data": [1] * 900}]})
    assert surface.elsewhere({}, one, 10**6) is None
    words = b",".join([b"NaN"] * 1_500)
    told = b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 1500], "data": [' + words + b"]}]}"
    assert surface.elsewhere({}, told, 10**6) is not None


def test_listeners_hear_what_was_refused_and_what_was_predicted() -> None:
    refusal = Refusal("too much waits", code="overloaded", retry_after_s=0.2)
    refusal.predicted_s = 0.75
    world = World(refusal)
    world.post()
    (told,) = world.seen
    assert (told.code, told.predicted_s, told.question.key) == ("overloaded", 0.75, "k1")


RAW_AT_OIP = msgspec.structs.replace(
    RAW, inputs=[Tensor("body", "BYTES", [-1])], outputs=[Tensor("answer", "BYTES", [-1])]
)
ASKED: list[tuple[Surface, bytes]] = [
    (
        OpenInference(RAW_AT_OIP),
        b'{"inputs":[{"name":"body","datatype":"BYTES","shape":[1],"data":["a"]}]}',
    ),
    (Lists(RAW), b'["a"]'),
    (Predict(RAW), b'{"instances":["a"]}'),
]
LARGE = Result(Outcome(b'"' * 10 * HEAVY, media="application/octet-stream"))


def asked_for_much(world: World, surface: Surface, body: bytes) -> Any:
    route = Route(RAW_AT_OIP, surface)
    leave = world.intake.take(route, (), body, world._respond)
    world.deliver(LARGE)
    assert world.answers == [], "it is not written in one turn"
    return leave


@pytest.mark.parametrize(("surface", "body"), ASKED)
def test_a_large_answer_is_written_in_many_turns_of_the_loop(surface: Surface, body: bytes) -> None:
    world = World()

    async def ask() -> int:
        asked_for_much(world, surface, body)
        turns = 0
        while not world.answers:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(ask()) > 4
    assert world.answers[0][0] == 200
    assert isinstance(world.seen[0], Answered)


@pytest.mark.parametrize(("surface", "body"), ASKED)
def test_who_leaves_while_a_large_answer_is_written_gets_none(surface: Surface, body: bytes) -> None:
    world = World()

    async def ask() -> None:
        leave = asked_for_much(world, surface, body)
        await asyncio.sleep(0)
        leave()
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert (world.answers, world.left) == ([], [])


def test_a_large_answer_that_is_not_written_by_the_deadline_is_a_miss() -> None:
    world = World()

    async def ask() -> None:
        asked_for_much(world, *ASKED[0])
        world.clock.advance(1.0)
        await asyncio.sleep(0)

    asyncio.run(ask())
    ((status, _, _),) = world.answers
    assert status == 504
