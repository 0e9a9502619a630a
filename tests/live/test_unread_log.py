"""A log that nobody reads any more, in a real process: requests are answered all the same."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest
from tests.live.serving import MODELS, clean_environment, eventually
from tests.redis_server import free_port

pytestmark = pytest.mark.live

PIPE_BYTES = 65_536
"""What Linux keeps in a pipe before whoever writes must wait."""


def test_a_full_pipe_behind_the_log_holds_no_request_up() -> None:
    port = free_port()
    unread, end = os.pipe()
    arguments = ["serve", str(MODELS / "breaks.py"), "--workers", "1", "--access-log", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "timebound.cli", *arguments], stderr=end, env=clean_environment()
    ) as server:
        os.close(end)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
            eventually(lambda: is_ready(client), "the server")
            for value in range(PIPE_BYTES // 100):  # each leaves a line of more than 100 bytes
                assert client.post("/predictions/breaks", json={"value": value}).json() == value
            server.terminate()
            assert server.wait(20) == 0
    written = 0
    while piece := os.read(unread, PIPE_BYTES):
        written += len(piece)
    os.close(unread)
    assert written >= PIPE_BYTES - 4096, "the pipe was full"


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
