"""A log that nobody reads any more, in a real process: requests are answered all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

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


LOUD = """
import sys
from contextlib import ExitStack
from pathlib import Path
import timebound as tb

class Loud(tb.Model):
    deadline = 2.0
    class Request(tb.Struct):
        n: int
    def infer(self, batch):
        print("x" * 60_000, flush=True)
        print("y" * 60_000, file=sys.stderr, flush=True)
        return [request.n for request in batch]
"""


def test_a_worker_that_prints_is_not_held_up_by_pipes_that_nobody_reads(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "app.py"
    file.write_text(LOUD)
    unread, end = os.pipe()
    arguments = ["serve", str(file), "--workers", "1", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "timebound.cli", *arguments], stdout=end, stderr=end, env=clean_environment()
    ) as server:
        os.close(end)
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client,
            ExitStack() as stack,
        ):
            stack.callback(server.kill)
            eventually(lambda: is_ready(client), "the server")
            [worker] = client.get("/v1/models").json()["workers"]
            for n in range(100):  # more than pipes and what is held for a slow reader take together
                assert client.post("/predictions/loud", json={"n": n}).json() == n
            assert [each["pid"] for each in client.get("/v1/models").json()["workers"]] == [worker["pid"]]
            # When somebody reads again, it is told how much there was.
            said = b""
            while b"what workers printed was dropped" not in said:
                said += os.read(unread, PIPE_BYTES)
            server.terminate()
            while piece := os.read(unread, PIPE_BYTES):
                said += piece
            assert server.wait(20) == 0
    os.close(unread)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
