"""Clients that keep the server waiting: told so where they can hear it, and let go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import get, post

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    options = ("--workers", "1", "--read-timeout", "0.5", "--write-timeout", "0.5")
    with Serving(MODELS / "answers_much.py", *options) as serving:
        yield serving


def test_half_a_request_is_answered_408_and_closed(serving: Serving) -> None:
    head = b"POST /predictions/much HTTP/1.1\r\nHost: test\r\n"
    halves = [
        head[:-6],
        head + b"Content-Length: 11\r\n\r\n",
        head + b'Content-Length: 11\r\n\r\n{"siz',
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ]
    with ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in halves]
        for wire, half in zip(wires, halves, strict=True):
            wire.send(half)
        for wire, half in zip(wires, halves, strict=True):
            answer = wire.read()
            assert (answer.status, answer.json()["code"]) == (408, "slow_client"), half
            assert answer.headers["connection"] == "close"
            assert wire.read_to_end() == b""


def test_a_second_request_that_stays_half_is_answered_408_too(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(post("/predictions/much", {"size": 3}))
        assert wire.read().body == bytes(3)
        wire.send(b"POST /predictions/much HTTP/1.1\r\nHost: te")
        assert wire.read().status == 408
        assert wire.read_to_end() == b""


def test_half_a_body_for_an_unknown_path_gets_one_answer_not_two(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 11\r\n\r\n")
        assert wire.read().status == 404
        assert wire.read_to_end() == b""


def test_a_connection_on_which_nothing_is_said_is_closed(serving: Serving) -> None:
    with serving.wire() as wire:
        assert wire.read_to_end() == b""


def test_an_idle_connection_is_kept_between_requests_longer_than_a_request_may_take(serving: Serving) -> None:
    with serving.wire() as idle, serving.wire() as slow:
        idle.send(get("/livez"))
        assert idle.read().status == 200
        slow.send(b"POST ")  # is turned away by the same sweep that would end the idle one
        assert slow.read().status == 408
        idle.send(get("/livez"))
        assert idle.read().status == 200


def test_a_client_that_does_not_read_its_answer_is_cut_off(serving: Serving) -> None:
    size = 60_000_000  # more than the system's socket buffers take
    with serving.wire() as wire:
        eventually(lambda: serving.gauge("connections_open") == 2, "only this connection besides the test's own")
        wire.send(post("/predictions/much", {"size": size}))
        eventually(lambda: serving.gauge("connections_open") == 1, "the connection's end")
        answer = wire.read()
        assert answer.status == 200
        assert not answer.is_whole
    assert serving.http.post("/predictions/much", json={"size": 5}).content == bytes(5)


def test_a_client_that_reads_slowly_but_steadily_gets_all_of_a_large_answer() -> None:
    size = 60_000_000
    options = ("--workers", "1", "--write-timeout", "2")
    with Serving(MODELS / "answers_much.py", *options) as serving, serving.wire() as wire:
        wire.send(post("/predictions/much", {"size": size}))
        slow_until = time.monotonic() + 4  # well over the limit and the second between two sweeps
        while time.monotonic() < slow_until:
            wire.take_in(50_000)
            for _ in range(20):  # other business between two reads
                serving.http.get("/livez")
        answer = wire.read()
    assert (len(answer.body), answer.is_whole) == (size, True)


def test_500_clients_that_never_finish_are_all_let_go_and_disturb_nobody(serving: Serving) -> None:
    half = b"POST /predictions/much HTTP/1.1\r\nHost: test\r\nX-Slow: "
    with ExitStack() as stack:
        wires = [stack.enter_context(serving.wire()) for _ in range(500)]
        for wire in wires:
            wire.send(half)
        began = time.monotonic()
        assert serving.http.post("/predictions/much", json={"size": 5}).content == bytes(5)
        assert time.monotonic() - began < 5
        assert {wire.read().status for wire in wires} == {408}
        assert all(wire.read_to_end() == b"" for wire in wires)
    eventually(lambda: serving.gauge("connections_open") <= 1, "all connections gone")
    assert 'timebound_turned_away_total{code="slow_client"}' in serving.http.get("/metrics").text
