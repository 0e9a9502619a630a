"""What a server does for the first time costs nobody more than the next: nothing is imported when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.live.serving import MODELS, clean_environment

pytestmark = pytest.mark.live

ASKED = [
    "/", "/docs", "/live", "/history", "/openapi.json", "/metrics", "/v1/models", "/v1/models/echo/samples", "/livez",
    "/readyz", "/ui/vendor/swagger-ui/swagger-ui.css", "/v2", "/v2/models/stats", "/v2/models/echo", "/ping",
    "/nowhere",
]  # fmt: skip

ASK = """
import asyncio, json, sys
from pathlib import Path
from timebound.config import of_options
from timebound.server import Server

async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 ")
    writer.close()

async def run():
    server = Server(Path(sys.argv[1]), of_options({"port": 0, "workers": 1, "profiles": "none"}))
    await server.start()
    port = int(server.address.rpartition(":")[2])
    await get(port, "/livez")  # asyncio's own first uses
    imported = {}
    for path in sys.argv[2:]:
        before = set(sys.modules)
        await get(port, path)
        if more := sorted(set(sys.modules) - before):
            imported[path] = more
    await server.stop()
    print(json.dumps(imported))

asyncio.run(run())
"""


def test_no_page_or_call_is_the_first_to_need_a_module() -> None:
    command = [sys.executable, "-c", ASK, str(MODELS / "echo.py"), *ASKED]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {}


LEARN = """
import asyncio, json, sys
from pathlib import Path
from timebound.config import of_options
from timebound.observe.reference import LEAST
from timebound.observe.streams import Streams
from timebound.server import Server

async def run():
    server = Server(Path(sys.argv[1]), of_options({"port": 0, "workers": 1, "profiles": "none"}))
    await server.start()
    before, streams = set(sys.modules), Streams()
    for turn in range(LEAST + 1):  # as the thread does that looks at answers
        streams.add("echo", "", {"confidence": turn / LEAST, "label": str(turn % 7), "size": 1.0 + turn}, 0.0)
    print(json.dumps([[stream.signal for stream in streams.each() if stream.detector], [*set(sys.modules) - before]]))
    await server.stop()

asyncio.run(run())
"""


def test_learning_what_answers_are_usual_imports_nothing_while_requests_are_served() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARN, MODELS / "echo.py"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [["confidence", "label", "size"], []]
