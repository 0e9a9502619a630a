"""Places to watch a server live, all of them taken: by pages that nobody reads, or by holders of a pass."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import httpx
import pytest
from tests.live.serving import MODELS, Serving, eventually

pytestmark = pytest.mark.live


def page_of(serving: Serving, token: str) -> socket.socket:
    """A page that watches, and takes hardly anything into its own memory until it reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", serving.port))
    sock.sendall(f"GET /v1/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return sock


def test_pages_that_nobody_reads_lose_their_places_and_one_that_is_read_keeps_its_own() -> None:
    with Serving(MODELS / "watched.py", "--workers", "1") as serving, ExitStack() as stack:
        token = stack.enter_context(serving.by_socket()).post("/v1/live/pass").json()["pass"]
        for _ in range(63):
            stack.enter_context(page_of(serving, token))
        client = stack.enter_context(httpx.Client(base_url=serving.url, trust_env=False, timeout=20))
        header = {"Authorization": f"Bearer {token}"}
        lines = stack.enter_context(client.stream("GET", "/v1/live", headers=header)).iter_lines()
        eventually(lambda: serving.gauge("live_watchers") == 64, "all places are taken")
        seconds = 0
        while serving.gauge("live_watchers") > 1:
            assert next(line for line in lines if line).startswith("data: ")
            seconds += 1
            assert seconds < 40
        with client.stream("GET", "/v1/live", headers=header) as newcomer:
            assert newcomer.status_code == 200
        assert next(line for line in lines if line).startswith("data: ")


def test_the_operator_gets_a_place_at_once_though_holders_of_a_pass_have_all() -> None:
    with Serving(MODELS / "watched.py", "--workers", "1") as serving, ExitStack() as stack:
        operator = stack.enter_context(serving.by_socket())
        token = operator.post("/v1/live/pass").json()["pass"]
        for _ in range(64):
            stack.enter_context(page_of(serving, token))
        eventually(lambda: serving.gauge("live_watchers") == 64, "all places are taken")
        assert stack.enter_context(page_of(serving, token)).recv(1_000).startswith(b"HTTP/1.1 503")
        with operator.stream("GET", "/v1/live") as stream:
            assert stream.status_code == 200
            assert next(stream.iter_lines()).startswith("data: ")
