"""Behind a proxy that is believed: deadlines count from its stamp, and seats, limits and the log know the client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live

LIMIT = "Timebound-Timeout-Ms: 10000"


@pytest.fixture(scope="module")
def believing() -> Iterator[Serving]:
    options = ("--trusted-proxies", "127.0.0.1", "--max-per-address", "2", "--access-log")
    with Serving(MODELS / "waits.py", "--workers", "1", *options) as serving:
        yield serving


def stamp(ago_s: float) -> str:
    return f"X-Request-Start: t={time.time() - ago_s:.3f}"


def test_a_deadline_counts_from_the_stamp_of_a_proxy_that_is_believed(believing: Serving, gate: Gate) -> None:
    with believing.wire() as wire:
        began = time.monotonic()
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, LIMIT, stamp(9.0)))
        assert wire.read().json()["code"] == "deadline_missed"
        assert time.monotonic() - began < 5.0  # one second was left of ten
    gate.open()


@pytest.mark.parametrize("ago_s", [-30.0, 3600.0])
def test_a_stamp_of_the_future_or_of_long_ago_is_ignored(believing: Serving, gate: Gate, ago_s: float) -> None:
    with believing.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, LIMIT, stamp(ago_s)))
        eventually(lambda: believing.is_holding(running=1), "the request to wait in its worker")
        gate.open()
        assert wire.read().status == 200
    eventually(lambda: believing.lines("a proxy's X-Request-Start is not believed"), "the log to tell so")


@pytest.mark.parametrize("options", [(), ("--trusted-proxies", "10.0.0.0/8")])
def test_a_stamp_of_anybody_else_is_ignored(gate: Gate, options: tuple[str, ...]) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", *options) as serving, serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, LIMIT, stamp(9.999)))
        eventually(lambda: serving.is_holding(running=1), "the request to wait in its worker")
        gate.open()
        assert wire.read().status == 200


def test_clients_behind_a_proxy_have_their_own_seats_and_are_named_in_the_log(believing: Serving, gate: Gate) -> None:
    body = {"value": 1, "gate": str(gate.path)}
    greedy, modest = "X-Forwarded-For: 10.1.1.1, 203.0.113.7", "X-Forwarded-For: 203.0.113.8"
    with ExitStack() as stack:
        wires = [stack.enter_context(believing.wire()) for _ in range(5)]
        for wire in wires[:2]:
            wire.send(post("/wait", body, greedy))
        eventually(lambda: believing.gauge("requests_pending") == 2, "both to be in work")
        wires[2].send(post("/wait", body, greedy))
        refused = wires[2].read()
        assert (refused.status, refused.json()["code"]) == (429, "client_busy")
        wires[3].send(post("/wait", body, modest))
        eventually(lambda: believing.gauge("requests_pending") == 3, "the third of another address")
        gate.open()
        assert [wires[place].read().status for place in (0, 1, 3)] == [200, 200, 200]
        wires[2].send(post("/wait", body, greedy))
        assert wires[2].read().status == 200  # the seats are free again

    def has_named() -> bool:
        return {"203.0.113.7", "203.0.113.8"} <= {line.get("address") for line in believing.lines("request")}

    eventually(has_named, "both addresses in the log")


def test_a_client_who_leaves_gives_its_seat_back(believing: Serving, gate: Gate) -> None:
    body = {"value": 1, "gate": str(gate.path)}
    for _ in range(5):
        with believing.wire() as wire:
            wire.send(post("/wait", body, "X-Forwarded-For: 203.0.113.9"))
            eventually(lambda: believing.gauge("requests_pending") == 1, "the request to be in work")
        eventually(lambda: believing.gauge("requests_pending") == 0, "the client to have left")
    gate.open()


def test_a_connection_is_counted_for_whom_its_proxy_announces() -> None:
    options = ("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--max-per-address", "1", "--access-log")
    with Serving(MODELS / "echo.py", "--workers", "1", *options, until_ready=False) as serving, ExitStack() as stack:
        ours = b"PROXY TCP4 203.0.113.7 127.0.0.1 5123 8000\r\n"
        first, second, other, plain = (stack.enter_context(serving.wire()) for _ in range(4))

        def is_ready() -> bool:
            with serving.wire() as wire:
                wire.send(b"PROXY UNKNOWN\r\nGET /readyz HTTP/1.1\r\nhost: a\r\n\r\n")
                return wire.read().status == 200

        eventually(is_ready, "a ready server")
        first.send(ours[:10])
        first.send(ours[10:], post("/inference", {"value": 1}))
        assert first.read().status == 200
        second.send(ours)
        assert second.read().status == 429
        other.send(b"PROXY TCP4 127.0.0.1 127.0.0.1 5123 8000\r\nPOST /v1/reload HTTP/1.1\r\nhost: localhost\r\n")
        other.send(b"content-length: 0\r\n\r\n")
        assert other.read().status == 403  # the proxy's own machine is not ours
        plain.send(post("/inference", {"value": 1}))
        assert plain.read_to_end() == b""
        serving.wait_for_line("request")
        assert json.dumps(serving.lines("request")).count("203.0.113.7") == 1
