"""What clients get wrong: a fitting 4xx with a reason, at once, and a server that goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.serving import MODELS, Serving, memory_of
from tests.live.wire import Answer, get, post

pytestmark = pytest.mark.live

JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        yield serving


@pytest.fixture
def serving(shared: Serving) -> Iterator[Serving]:
    """A server that must still be well when the test is over, without a word of complaint in its log."""
    yield shared
    assert shared.http.post("/inference", json={"value": 1}).json()["value"] == 1
    assert shared.lines("worker is gone") == []
    assert "Traceback" not in shared.said


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["title"]
    assert problem["detail"]


def ask(serving: Serving, *parts: bytes) -> Answer:
    with serving.wire() as wire:
        wire.send(*parts)
        return wire.read()


def chunked(path: str, count: int, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"%x\r\n%b\r\n" % (size, bytes(size)) * count + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"value": 1',
        b'{"value": 1} {}',
        b"value=1",
        b'{"value": 1, "id": "\xff"}',
        b'{"value": 1, "x": ' + b"[" * 100_000,
    ],
    ids=["open", "cut", "two", "form", "not-utf8", "deep"],
)
def test_malformed_json_is_400(serving: Serving, body: bytes) -> None:
    assert_problem(ask(serving, post("/inference", body, JSON)), 400, "malformed_json")


def test_an_empty_body_is_400(serving: Serving) -> None:
    assert_problem(ask(serving, post("/inference", b"", JSON)), 400, "empty_body")
    assert_problem(ask(serving, b"POST /inference HTTP/1.1\r\nHost: test\r\n\r\n"), 400, "empty_body")


@pytest.mark.parametrize("media", ["text/plain", "image/png", "multipart/mixed; boundary=x", "application/xml"])
def test_another_content_type_is_415(serving: Serving, media: str) -> None:
    answer = ask(serving, post("/inference", {"value": 1}, f"Content-Type: {media}"))
    assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"])
def test_any_spelling_of_json_is_taken(serving: Serving, media: str) -> None:
    assert ask(serving, post("/inference", {"value": 1}, f"Content-Type: {media}")).status == 200


@pytest.mark.parametrize(
    ("body", "field"), [({}, "value"), ({"value": "one"}, "value"), ({"value": 1, "id": 5}, "id"), ([1], None)]
)
def test_a_body_of_the_wrong_shape_is_422_and_names_the_field(serving: Serving, body: object, field: str) -> None:
    answer = ask(serving, post("/inference", body, JSON))
    assert_problem(answer, 422, "bad_input")
    assert answer.json().get("field") == field


def test_20_megabytes_are_413_for_a_client_that_sends_all_of_it_first(serving: Serving) -> None:
    ask(serving, post("/inference", bytes(9_000_000)))  # what the largest body takes is not counted
    before = memory_of(serving.pid)
    answer = ask(serving, post("/inference", bytes(20_000_000)))
    assert_problem(answer, 413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert memory_of(serving.pid) - before < 4_000_000


def test_20_megabytes_in_chunks_are_413_too(serving: Serving) -> None:
    assert_problem(ask(serving, chunked("/inference", 200, 100_000)), 413, "body_too_large")


def test_413_comes_before_the_body_is_sent(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(b"POST /inference HTTP/1.1\r\nHost: test\r\nContent-Length: 20000000\r\nExpect: 100-continue\r\n\r\n")
        assert_problem(wire.read(), 413, "body_too_large")


def test_a_body_too_large_for_an_unknown_path_gets_one_answer_not_two(serving: Serving) -> None:
    with serving.wire() as wire:
        head, rest = chunked("/nowhere", 1, 100), chunked("", 200, 100_000).partition(b"\r\n\r\n")[2]
        wire.send(head.removesuffix(b"0\r\n\r\n"))
        assert_problem(wire.read(), 404, "not_found")
        wire.send(rest)
        assert wire.read_to_end() == b""


def test_an_unknown_model_is_404_and_says_which_there_are(serving: Serving) -> None:
    answer = ask(serving, post("/predictions/nobody", {"value": 1}, JSON))
    assert_problem(answer, 404, "unknown_model")
    assert "echo" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/nowhere", "/inference/x", "/%00"])
def test_an_unknown_path_is_404(serving: Serving, path: str) -> None:
    assert_problem(ask(serving, post(path, {"value": 1}, JSON)), 404, "not_found")


@pytest.mark.parametrize("path", ["/ui/nothing.js", "/ui/../server.py", "/ui/%2e%2e/server.py", "/ui/vendor"])
def test_only_the_files_of_the_pages_are_given_away(serving: Serving, path: str) -> None:
    assert_problem(ask(serving, get(path)), 404, "not_found")


@pytest.mark.parametrize("path", ["/inference", "/predictions/echo"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_model_takes_only_posts(serving: Serving, method: str, path: str) -> None:
    answer = ask(serving, f"{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    assert_problem(answer, 405, "method_not_allowed")


def test_405_names_the_methods_that_are_taken(serving: Serving) -> None:
    assert ask(serving, get("/inference")).headers.get("allow") == "POST"
    assert "GET" in ask(serving, post("/livez", {})).headers.get("allow", "")


@pytest.mark.parametrize(
    "headers",
    [["X-Large: " + "x" * 40_000], [f"X-Header-{number}: some text" for number in range(2_000)]],
    ids=["one", "many"],
)
def test_headers_beyond_the_limit_are_431(serving: Serving, headers: list[str]) -> None:
    assert_problem(ask(serving, post("/inference", {"value": 1}, *headers)), 431, "headers_too_large")


def test_a_request_line_beyond_the_limit_is_431(serving: Serving) -> None:
    assert_problem(ask(serving, get("/" + "x" * 40_000)), 431, "headers_too_large")


def test_a_header_that_never_ends_is_431(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(b"POST /inference HTTP/1.1\r\nX-Large: ", b"x" * 1_000_000)
        assert_problem(wire.read(), 431, "headers_too_large")


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /inference HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /inference HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"POST /inference HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /inference HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET http://[bad/ HTTP/1.1\r\nHost: test\r\n\r\n",
    ],
    ids=["words", "tls", "version", "length", "two-lengths", "length-and-chunks", "chunk", "target"],
)
def test_garbage_in_the_place_of_http_is_400(serving: Serving, garbage: bytes) -> None:
    with serving.wire() as wire:
        wire.send(garbage)
        assert_problem(wire.read(), 400, "malformed_http")
        assert wire.read_to_end() == b""


@pytest.mark.parametrize(
    "header",
    [
        "Timebound-Timeout-Ms: soon",
        "Timebound-Timeout-Ms: -5",
        "Timebound-Timeout-Ms: nan",
        "Timebound-Timeout-Ms: inf",
        "Timebound-Timeout-Ms: 0",
        "Timebound-Timeout-Ms: \u00b2",
        "grpc-timeout: 5",
        "grpc-timeout: 5x",
        "grpc-timeout: 123456789m",
        "X-Request-Timeout-Seconds: 1s",
        "X-Envoy-Expected-Rq-Timeout-Ms: 1e999",
    ],
)
def test_a_time_limit_that_is_none_is_400_and_names_the_header(serving: Serving, header: str) -> None:
    answer = ask(serving, post("/inference", {"value": 1}, JSON, header))
    assert_problem(answer, 400, "bad_header")
    assert answer.json()["field"] == header.partition(":")[0].lower()


@pytest.mark.parametrize("next_one", [post("/inference", {"value": 1}), get("/livez")], ids=["model", "probe"])
def test_after_a_refusal_nothing_more_is_answered_on_that_connection(next_one: bytes) -> None:
    with Serving(MODELS / "echo.py", "--workers", "1", "--max-body", "1KB") as serving:
        with serving.wire() as wire:
            wire.send(post("/inference", bytes(2_000)), next_one)
            assert_problem(wire.read(), 413, "body_too_large")
            assert wire.read_to_end() == b""
        assert serving.http.post("/inference", json={"value": 1}).status_code == 200
        assert "Traceback" not in serving.said
