"""Connections: kept, closed, shared by several requests, limited in number.

Time really passes in some of these: that a server does nothing for a while is what they test.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually, memory_of
from tests.live.wire import get, post

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "waits.py", "--workers", "1") as serving:
        yield serving
        assert "Traceback" not in serving.said


def test_one_connection_serves_many_requests(serving: Serving) -> None:
    with serving.wire() as wire:
        for number in range(50):
            wire.send(post("/wait", {"value": number}) if number % 5 else get("/livez"))
            answer = wire.read()
            assert answer.json() == ({"value": number} if number % 5 else {"status": "live"})
            assert "connection" not in answer.headers


def test_a_client_that_asks_for_close_gets_it(serving: Serving) -> None:
    for request in (post("/wait", {"value": 1}, "Connection: close"), get("/livez", "Connection: close")):
        with serving.wire() as wire:
            wire.send(request)
            answer = wire.read()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert wire.read_to_end() == b""


def test_http_1_0_is_answered_and_closed(serving: Serving) -> None:
    for request in (post("/wait", {"value": 1}), get("/livez")):
        with serving.wire() as wire:
            wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            answer = wire.read()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert wire.read_to_end() == b""


def test_a_request_in_the_smallest_pieces_is_answered(serving: Serving) -> None:
    with serving.wire() as wire:
        for byte in post("/wait", {"value": 3}):
            wire.send(bytes([byte]))
        assert wire.read().json() == {"value": 3}


def test_a_body_in_chunks_is_put_together(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(b"POST /wait HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.send(b'4\r\n{"va\r\n', b'8\r\nlue": 4}\r\n', b"0\r\n\r\n")
        assert wire.read().json() == {"value": 4}


def test_pipelined_requests_are_answered_in_order(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(
            post("/wait", {"value": 1}),
            get("/livez"),
            post("/wait", {"value": 2}),
            post("/predictions/waits", b"{"),
            get("/nowhere"),
            post("/wait", {"value": 3}),
            get("/readyz"),
        )
        answers = [wire.read() for _ in range(7)]
    assert [answer.status for answer in answers] == [200, 200, 200, 400, 404, 200, 200]
    assert [answers[place].json() for place in (0, 2, 5)] == [{"value": 1}, {"value": 2}, {"value": 3}]


def test_many_pipelined_model_requests_each_get_their_own_answer(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(*(post("/wait", {"value": number}) for number in range(100)))
        assert [wire.read().json()["value"] for _ in range(100)] == list(range(100))


def test_thousands_of_requests_in_one_piece_each_get_their_answer_in_order(serving: Serving) -> None:
    # More than wait at a time, more than one read takes, of both kinds, with the last cut in two
    asked = b"".join(post("/wait", {"value": n}) if n % 3 else get("/livez") for n in range(3000))
    with serving.wire() as wire:
        sending = threading.Thread(target=wire.send, args=(asked[:-5],))
        sending.start()
        answers = [wire.read() for _ in range(2999)]
        sending.join()
        wire.send(asked[-5:])
        answers.append(wire.read())
    assert {answer.status for answer in answers} == {200}
    expected = [{"value": n} if n % 3 else {"status": "live"} for n in range(3000)]
    assert [answer.json() for answer in answers] == expected


def test_a_body_in_chunks_and_pieces_is_whole(serving: Serving) -> None:
    body = json.dumps({"value": 7, "pad": "x" * 300_000}).encode()
    for size in (7, 1000, 5000, 100_000):
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts)
        head = b"POST /wait HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        with serving.wire() as wire:
            wire.send(head, chunks, b"0\r\nX-Trailer: a\r\n\r\n", post("/wait", {"value": 8}))
            assert [wire.read().json() for _ in range(2)] == [{"value": 7}, {"value": 8}]


def test_a_slow_answer_is_not_overtaken_by_a_quick_one_on_its_connection(serving: Serving, gate: Gate) -> None:
    with serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}), get("/livez"))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        gate.open()
        assert wire.read().json() == {"value": 1}
        assert wire.read().json() == {"status": "live"}


def test_garbage_after_a_good_request_does_not_take_its_answer(serving: Serving, gate: Gate) -> None:
    with serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}), b"garbage\r\n\r\n")
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        gate.open()
        assert wire.read().json() == {"value": 1}
        assert wire.read().status == 400
        assert wire.read_to_end() == b""


def test_a_client_that_leaves_does_not_disturb_the_server(serving: Serving, gate: Gate) -> None:
    with serving.wire() as leaving:
        leaving.send(post("/wait", {"value": 1, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the request in the worker")
    with serving.wire() as staying:
        staying.send(post("/wait", {"value": 2}))
        gate.open()
        assert staying.read().json() == {"value": 2}


@pytest.mark.parametrize("path", ["/wait", "/predictions/waits"])
def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(serving: Serving, path: str) -> None:
    head, _, body = post(path, {"value": 9}, "Expect: 100-continue").partition(b"\r\n\r\n")
    with serving.wire() as wire:
        wire.send(head, b"\r\n\r\n")
        assert wire.read().status == 100
        wire.send(body)
        assert wire.read().json() == {"value": 9}


def test_200_connections_at_once_are_all_answered(serving: Serving) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(200)]
        for number, wire in enumerate(wires):
            wire.send(post("/wait", {"value": number}))
        assert [wire.read().json()["value"] for wire in wires] == list(range(200))


def test_a_connection_beyond_the_limit_is_told_so_and_closed() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1", "--max-connections", "2") as serving:
        with serving.wire() as first, serving.wire() as second:
            for wire in (first, second):
                wire.send(get("/livez"))
                assert wire.read().status == 200
            with serving.wire() as third:
                answer = third.read()
                assert (answer.status, answer.json()["code"]) == (503, "too_many_connections")
                assert third.read_to_end() == b""
            first.send(post("/inference", {"value": 1}))
            assert first.read().status == 200
        eventually(lambda: serving.http.get("/livez").status_code == 200, "a seat after the others have left")


def test_a_client_that_leaves_its_pipelined_requests_leaves_no_traceback(serving: Serving, gate: Gate) -> None:
    with serving.wire() as leaving:
        requests = [post("/wait", {"value": number, "gate": str(gate.path)}) for number in range(3)]
        leaving.send(*requests)
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
    gate.open()
    eventually(lambda: serving.is_holding(running=0), "nothing left of them")
    assert serving.http.get("/livez").status_code == 200
    assert "Traceback" not in serving.said


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "anything"])
def test_who_asks_for_another_protocol_gets_one_plain_answer(serving: Serving, protocol: str) -> None:
    wish = f"Connection: keep-alive, Upgrade\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n".encode()
    head, _, body = post("/wait", {"value": 5}).partition(b"\r\n\r\n")
    first, _, rest = head.partition(b"\r\n")
    with serving.wire() as wire:
        wire.send(first + b"\r\n" + wish + rest + b"\r\n\r\n" + body, get("/livez"))
        assert wire.read().json() == {"value": 5}
        assert wire.read().status == 200
    smuggled = get("/livez")
    with serving.wire() as wire:  # a body that comes later is still a body
        wire.send(first + b"\r\n" + wish + b"Host: test\r\nContent-Length: %d\r\n" % len(smuggled))
        wire.send(b"Connection: close\r\nContent-Type: application/json\r\n\r\n")
        eventually(lambda: wire.is_read, "the head, read before the body is sent")
        wire.send(smuggled)
        seen = wire.read_to_end()
    assert seen.startswith(b"HTTP/1.1 400")
    assert seen.count(b"HTTP/1.1 ") == 1


def test_a_tunnel_is_refused(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n", get("/livez"))
        seen = wire.read_to_end()
    assert seen.startswith(b"HTTP/1.1 400")
    assert seen.count(b"HTTP/1.1 ") == 1


WAYS = {
    "alone": lambda wire, request: wire.send(request),
    "pipelined": lambda wire, request: wire.send(get("/livez"), request),
    "with a query string": lambda wire, request: wire.send(request.replace(b"POST /wait ", b"POST /wait?a=1&b ")),
    "with the whole address": lambda wire, request: wire.send(request.replace(b" /wait ", b" http://host:80/wait ")),
    "with escapes": lambda wire, request: wire.send(request.replace(b" /wait ", b" /w%61it ")),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_the_same(way: str) -> None:
    """One way in: the same answer, the same limits, and a client that leaves has left."""
    with Serving(MODELS / "waits.py", "--workers", "1", "--max-body", "1000", "--deadline", "20") as serving:
        with serving.wire() as wire:
            WAYS[way](wire, post("/wait", {"value": 1}, "Timebound-Timeout-Ms: 9000"))
            if way == "pipelined":
                wire.read()
            answer = wire.read()
            assert (answer.status, answer.json()) == (200, {"value": 1})
            assert answer.headers["timebound-source"] == "computed"
            assert "server-timing" in answer.headers
        with serving.wire() as wire:
            WAYS[way](wire, post("/wait", {"value": 1, "gate": "x" * 2000}))
            if way == "pipelined":
                wire.read()
            assert wire.read().status == 413


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_has_left_whichever_way_it_came(serving: Serving, gate: Gate, way: str) -> None:
    with serving.wire() as wire:
        WAYS[way](wire, post("/wait", {"value": 1, "gate": str(gate.path)}))
        if way == "pipelined":
            wire.read()
        eventually(lambda: serving.gauge("requests_pending") == 1, "it waits")
        wire.close()
        eventually(lambda: serving.gauge("requests_pending") == 0, "nobody waits")


HOSTS = {"no": (), "two": ("Host: a", "Host: b"), "the same twice": ("Host: a", "host: a"), "one": ("Host: a",)}


@pytest.mark.parametrize("is_behind", [False, True], ids=["alone", "pipelined"])
@pytest.mark.parametrize("target", ["/wait", "/livez", "/nowhere", "http://test/wait", "/wait?a=b", "/w%61it"])
@pytest.mark.parametrize("hosts", HOSTS)
def test_a_request_names_one_host_whichever_way_it_comes(
    serving: Serving, hosts: str, target: str, is_behind: bool
) -> None:
    method, body = ("GET", b"") if "wait" not in target else ("POST", b'{"value": 1}')
    for version in ("1.1", "1.0"):
        lines = [f"{method} {target} HTTP/{version}", *HOSTS[hosts], f"Content-Length: {len(body)}", "", ""]
        with serving.wire() as wire:
            wire.send(post("/wait", {"value": 2}) if is_behind else b"", "\r\n".join(lines).encode() + body)
            if is_behind:
                assert wire.read().status == 200
            answer = wire.read()
        is_right = hosts == "one" or (hosts == "no" and version == "1.0")
        assert (answer.status == 400) == (not is_right), (hosts, version, answer)
        assert is_right or "Host" in answer.json()["detail"]


def test_a_refused_request_leaves_those_before_it_their_answers(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--read-timeout", "0.5") as serving, serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}), b"BAD\r\n\r\n")
        eventually(lambda: serving.gauge("requests_pending") == 1, "it waits")
        time.sleep(3.0)  # longer than a refused client may linger
        gate.open()
        assert [wire.read().status, wire.read().status] == [200, 400]


def test_a_request_that_the_server_does_not_read_on_is_not_slow(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--read-timeout", "0.5") as serving, serving.wire() as wire:
        first, second = post("/wait", {"value": 1, "gate": str(gate.path)}), post("/wait", {"value": 2})
        wire.send(first, *[second] * 20, second[:-5])  # more than are read while one is computed
        time.sleep(2.5)  # five times the limit, and more than the second between two looks at connections
        wire.send(second[-5:])
        gate.open()
        assert [wire.read().json()["value"] for _ in range(22)] == [1] + [2] * 21


def test_a_request_in_work_is_no_idle_connection(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--keep-alive", "0.2") as serving, serving.wire() as wire:
        wire.send(post("/wait", {"value": "x"}), post("/wait", {"value": 2, "gate": str(gate.path)}))
        assert wire.read().status == 422
        time.sleep(2.5)  # many times the limit: an idle connection would be closed by now
        gate.open()
        assert wire.read().json() == {"value": 2}


def test_a_read_that_ends_in_the_next_head_is_no_large_head(serving: Serving) -> None:
    with serving.wire() as wire:
        whole = post("/wait", {"value": 1, "gate": "", "pad": "x" * 60_000})
        following = post("/wait", {"value": 2})
        for _ in range(10):
            wire.send(whole, following[:20])
            assert wire.read().status == 200
            wire.send(following[20:])
            assert wire.read().json() == {"value": 2}


def test_who_does_not_read_its_answers_gets_no_more_of_them() -> None:
    with Serving(MODELS / "answers_much.py", "--workers", "1") as serving, serving.wire() as wire:
        request = post("/predictions/much", {"size": 1_000_000}, "Idempotency-Key: k")
        wire.send(request)
        assert len(wire.read().body) == 1_000_000
        before = memory_of(serving.pid)
        wire.send(*[request] * 200)
        eventually(lambda: wire.is_read, "all of it read")
        time.sleep(1.0)  # time in which answers that nobody reads could pile up
        assert memory_of(serving.pid) - before < 40_000_000


@pytest.mark.parametrize("beginning", [b"\r", b"\n", b" "])
def test_a_first_byte_that_begins_nothing_yet_is_no_error_of_ours(beginning: bytes) -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        with serving.wire() as wire:
            wire.send(beginning)
            serving.http.get("/livez")  # by now it was read
        assert "Traceback" not in serving.said
