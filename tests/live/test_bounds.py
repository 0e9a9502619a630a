"""What clients send stays within bounds: nesting, encodings, bytes in memory, seats."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually, memory_of
from tests.live.wire import get, post

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "deep.py", "--workers", "1") as serving:
        yield serving
        assert "Traceback" not in serving.said


@pytest.mark.parametrize("depth", [90, 150, 400, 700, 900, 950, 980, 1000, 5000, 100_000, 4_000_000])
@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_a_deeply_nested_body_is_the_clients_mistake(serving: Serving, depth: int, stage: str) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        value = opening * depth + b"1" + closing * depth
        body = b'{"value":%b,"stage":"%b"}' % (value[:9_000_000], stage.encode())
        answer = serving.http.post("/predictions/deep", content=body)
        assert answer.status_code in ((200,) if depth < 100 else (200, 400, 422, 413)), answer.text
    key = {"Idempotency-Key": f"k-{depth}-{stage}"}
    assert serving.http.post("/predictions/deep", content=body, headers=key).status_code != 500


def test_brackets_in_a_text_are_not_nesting(serving: Serving) -> None:
    answer = serving.http.post("/predictions/deep", json={"value": "[{" * 5000})
    assert (answer.status_code, answer.json()) == (200, {"depth": 0})


def test_a_compressed_body_is_refused_for_what_it_is(serving: Serving) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    for path in ("/predictions/deep", "/predictions/answers"):
        for encoding in ("gzip", "deflate", "br", "gzip, gzip", "x-gzip"):
            answer = serving.http.post(path, content=bomb, headers={"Content-Encoding": encoding})
            assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")
            assert answer.headers["accept-encoding"] == "identity"
    plain = serving.http.post("/predictions/deep", json={"value": 1}, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


def test_large_bodies_beyond_the_bound_are_refused_at_once_and_small_ones_go_on(gate: Gate) -> None:
    large = {"value": 1, "gate": str(gate.path), "text": "x" * 900_000}
    arguments = ("--workers", "1", "--slots", "1", "--max-body", "1MB", "--max-held", "2MB")
    with Serving(MODELS / "waits.py", *arguments) as serving, ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(4)]
        for wire in wires[:2]:
            wire.send(post("/wait", large))
        eventually(lambda: serving.gauge("held_bytes") > 1_800_000, "two large bodies")
        wires[2].send(b"POST /wait HTTP/1.1\r\nHost: test\r\nContent-Length: 900000\r\n\r\n")
        answer = wires[2].read()
        assert (answer.status, answer.json()["code"]) == (503, "memory_full")
        assert answer.headers["retry-after"] == "1"
        chunk = b"40000\r\n" + bytes(0x40000) + b"\r\n"
        wires[3].send(b"POST /wait HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n", chunk)
        assert wires[3].read().status == 503
        gate.open()
        assert [wire.read().status for wire in wires[:2]] == [200, 200]
        assert serving.http.post("/wait", json={"value": 5}).json() == {"value": 5}
        eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")
        assert 'turned_away_total{code="memory_full"} 2.0' in serving.http.get("/metrics").text


def test_bodies_whose_clients_have_left_count_while_they_are_kept_and_make_room_for_others(gate: Gate) -> None:
    arguments = ("--workers", "1", "--slots", "1", "--max-body", "1MB", "--max-held", "2MB")
    with Serving(MODELS / "waits.py", *arguments) as serving:
        for number in range(2):
            body = {"value": number, "gate": str(gate.path), "text": "x" * 900_000}
            with serving.wire() as wire:
                wire.send(post("/wait", body, f"Idempotency-Key: k{number}"))
                # Given that it is read and accepted: who leaves before that has asked for nothing
                eventually(lambda: serving.gauge("requests_pending") == 1, "one more request")
                assert serving.gauge("held_bytes") > 900_000 * (number + 1)
        eventually(lambda: serving.gauge("requests_pending") == 0, "the server to know that they have left")
        # Then there is room for whoever waits: the one that has not run yet is let go, the one that runs still counts
        assert serving.http.post("/wait", content=b"x" * 900_000).status_code == 400
        assert 900_000 < serving.gauge("held_bytes") < 1_800_000
        gate.open()
        eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")


def test_small_bodies_that_wait_behind_another_on_their_connection_are_counted(gate: Gate) -> None:
    small = post("/wait", b'{"value": 2}'.ljust(15_000))
    arguments = ("--workers", "1", "--slots", "1", "--max-held", "150000", "--max-body", "20000")
    with Serving(MODELS / "waits.py", *arguments) as serving, serving.wire() as first, serving.wire() as second:
        held = post("/wait", {"value": 1, "gate": str(gate.path)})
        first.send(held, small * 8)
        eventually(lambda: serving.gauge("held_bytes") >= 8 * 15_000, "eight that wait")
        second.send(held, small * 4)
        gate.open()
        assert [first.read().status for _ in range(9)] == [200] * 9
        statuses = [second.read().status for _ in range(4)]
        assert statuses == [200, 200, 200, 503], "there was room for two more"
        eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")


def test_who_does_not_read_answers_is_not_given_more_and_memory_stays(serving: Serving) -> None:
    before = memory_of(serving.pid)
    with ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(5)]
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for wire in wires:
                wire.send_some(post("/predictions/answers", b"4000000"))
            serving.http.get("/livez")
        assert memory_of(serving.pid) - before < 150_000_000  # 5 x (one answer, once more on its way): not hundreds
        first = wires[0].read()
        assert (first.status, len(first.body), first.is_whole) == (200, 4_000_000, True)
    eventually(lambda: serving.gauge("held_bytes") == 0, "nothing held")


def test_answers_beyond_the_bound_cut_the_connection_that_does_not_read() -> None:
    arguments = ("--workers", "1", "--max-body", "1MB", "--max-held", "2MB")
    with Serving(MODELS / "deep.py", *arguments) as serving, serving.wire() as wire:
        wire.send(post("/predictions/answers", b"30000000"))
        eventually(lambda: 'turned_away_total{code="memory_full"} 1.0' in serving.http.get("/metrics").text, "a cut")
        assert not wire.read().is_whole


def test_a_request_with_two_lengths_is_never_two_requests(serving: Serving) -> None:
    inner = get("/livez").decode()
    for lines in (
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("Content-Length: +5",),
        ("Content-Length: 5, 5",),
        ("Content-Length: 18446744073709551617",),
    ):
        with serving.wire() as wire:
            wire.send(
                "\r\n".join(["POST /predictions/deep HTTP/1.1", "Host: test", *lines, "", "0", "", inner]).encode()
            )
            seen = wire.read_to_end()
        assert seen.startswith(b"HTTP/1.1 400"), lines
        assert seen.count(b"HTTP/1.1") == 1, lines
    assert "Invalid HTTP" not in serving.said  # strangers do not write the log; they are counted
    assert 'turned_away_total{code="malformed_http"}' in serving.http.get("/metrics").text


def test_one_address_cannot_take_all_seats() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1", "--max-per-address", "3") as serving, ExitStack() as stack:
        for _ in range(2):
            wire = stack.enter_context(serving.wire())
            wire.send(get("/livez"))
            assert wire.read().status == 200
        assert serving.http.get("/livez").status_code == 200
        with serving.wire() as one_too_many:
            answer = one_too_many.read()
            assert (answer.status, answer.json()["code"]) == (429, "client_busy")
        assert 'turned_away_total{code="client_busy"} 1.0' in serving.http.get("/metrics").text


def test_a_batch_is_no_larger_than_a_frame_may_be(gate: Gate) -> None:
    arguments = ("--workers", "1", "--slots", "1", "--max-batch-bytes", "1MB")
    with Serving(MODELS / "waits.py", *arguments) as serving, ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(9)]
        wires[0].send(post("/wait", {"value": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the slot busy")
        for wire in wires[1:]:
            wire.send(post("/wait", json.dumps({"value": 1, "text": "x" * 400_000}).encode()))
        eventually(lambda: serving.is_holding(running=1, queued=8), "the others waiting")
        gate.open()
        answers = [wire.read() for wire in wires]
    assert all(answer.status == 200 for answer in answers)
    assert max(int(answer.headers["timebound-batch"]) for answer in answers[1:]) <= 2


CHUNKED = b"POST %b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("before", [b"", get("/livez"), post("/predictions/deep", {"value": 1})])
@pytest.mark.parametrize("path", [b"/predictions/deep", b"/livez"])
@pytest.mark.parametrize(
    ("start", "more"),
    [
        pytest.param(b'b\r\n{"value":1}\r\n0\r\n', b"X-A: " + b"a" * 200 + b"\r\n", id="lines behind the body"),
        pytest.param(b'b\r\n{"value":1}\r\n0\r\n', b"a:\r\n" * 50, id="tiny lines behind the body"),
        pytest.param(b'b\r\n{"value":1}\r\n0\r\nX-A: ', b"a" * 1000, id="an endless line behind the body"),
        pytest.param(b'b\r\n{"value":1}\r\n1;', b"a" * 1000, id="an endless line before a chunk"),
    ],
)
def test_what_is_neither_head_nor_body_is_bounded_like_a_head(
    serving: Serving, before: bytes, path: bytes, start: bytes, more: bytes
) -> None:
    with serving.wire() as wire:
        wire.send(before, CHUNKED % path, start)
        for _ in range(2000):
            wire.send_some(more)
        if before:
            assert wire.read().status == 200
        # The server's own routes answer before they have read a body; then no more of it is taken.
        assert wire.read().status == (431 if path != b"/livez" else 405)
        wire.read_to_end()


def test_what_comes_behind_a_refused_body_is_thrown_away(serving: Serving) -> None:
    before = memory_of(serving.pid)
    with serving.wire() as wire:
        wire.send(CHUNKED % b"/predictions/deep", b"989681\r\n")  # one byte more than is taken
        for _ in range(160):
            wire.send_some(bytes(65_536))
        assert wire.read().status == 413
        line = b"X-A: " + b"a" * 60_000 + b"\r\n"
        with suppress(OSError):  # it may be cut by then
            for _ in range(2000):
                wire.send_some(line)
        wire.read_to_end()
    assert memory_of(serving.pid) - before < 50_000_000


@pytest.mark.parametrize("way", ["at once", "in pieces", "pipelined", "to the server itself"])
@pytest.mark.parametrize(("lines", "status"), [(250, 200), (260, 431), (6000, 431)])
def test_very_many_header_lines_are_refused_though_they_are_short(
    serving: Serving, way: str, lines: int, status: int
) -> None:
    path = "/livez" if way == "to the server itself" else "/predictions/deep"
    request = get(path, *["a:"] * lines) if path == "/livez" else post(path, {"value": 1}, *["a:"] * lines)
    with serving.wire() as wire:
        if way == "pipelined":
            wire.send(post(path, {"value": 1}), request)
            assert wire.read().status == 200
        elif way == "in pieces":
            with suppress(OSError):
                for at in range(0, len(request), 100):
                    wire.send(request[at : at + 100])
        else:
            wire.send(request)
        assert wire.read().status == status


def test_a_header_behind_the_body_is_not_obeyed(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(CHUNKED % b"/predictions/deep", b'b\r\n{"value":1}\r\n0\r\nTimebound-Timeout-Ms: never\r\n\r\n')
        assert wire.read().status == 200


def test_a_body_in_the_smallest_chunks_costs_what_is_counted(gate: Gate) -> None:
    text = b"x" * 1_500_000
    body = b'{"value": 1, "pad": "' + text + b'"}'
    with Serving(MODELS / "waits.py", "--workers", "1") as serving, serving.wire() as wire:
        serving.http.post("/wait", content=body)  # the first large body makes room for those to come
        before = memory_of(serving.pid)
        wire.send(CHUNKED % b"/wait")
        for start in range(0, len(body) - 2, 20_000):
            part = body[start : start + 20_000]
            wire.send(b"".join(b"2\r\n%b\r\n" % part[at : at + 2] for at in range(0, len(part) - len(part) % 2, 2)))
        eventually(lambda: wire.is_read, "all of it read")
        assert memory_of(serving.pid) - before < 3 * len(text)


def test_a_path_of_escapes_is_refused_before_they_are_undone(serving: Serving) -> None:
    for request in (get("/" + "%4" * 1_100), post("/predictions/deep/" + "%41" * 1_100, {"value": 1})):
        with serving.wire() as wire:
            wire.send(request)
            answer = wire.read()
            assert (answer.status, answer.json()["code"]) == (431, "headers_too_large")
            assert "escapes" in answer.json()["detail"]
    assert serving.http.post("/predictions/%64eep?" + "%41" * 1_100, json={"value": 1}).status_code == 200
