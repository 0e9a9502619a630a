"""A start that fails leaves nothing behind, so that whoever runs the server can try again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import MODELS

import timebound as tb
from timebound import operator_socket
from timebound.config import of_options
from timebound.errors import SetupError
from timebound.http.front import HttpFront
from timebound.server import Server
from timebound.workers import output

pytestmark = pytest.mark.live

WRITERS = {"access-log", "history", "traces", "drift"}
"""The threads that take note of requests."""


def config(folder: Path, port: int, **more: Any) -> Any:
    """Everything that a server starts beside its models."""
    return of_options(
        {
            "port": port,
            "workers": 1,
            "profiles": "none",
            "access_log": True,
            "history": str(folder / "history"),
            "traces": "http://127.0.0.1:9/v1/traces",
            **more,
        }
    )


def writing() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & WRITERS


async def others() -> set[asyncio.Task[Any]]:
    """Tasks beside this one, once those that were cancelled have had their turn."""
    for _ in range(5):
        await asyncio.sleep(0)
    return asyncio.all_tasks() - {asyncio.current_task()}


async def is_served(folder: Path, port: int, **more: Any) -> bool:
    server = Server(MODELS / "echo.py", config(folder, port, **more))
    await server.start()
    try:
        assert writing() == WRITERS
        async with httpx.AsyncClient(base_url=server.address, trust_env=False) as client:
            return (await client.post("/inference", json={"value": 3})).status_code == 200
    finally:
        await server.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_model_that_cannot_be_loaded_leaves_no_thread_no_task_and_no_port(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import timebound as tb\n\nclass Broken(tb.Model):\n    infer = None\n")
    port, further = free_port(), free_port()
    more = {"also_at": f"127.0.0.1:{further}"}

    async def run() -> bool:
        with pytest.raises(SetupError):
            await Server(broken, config(tmp_path, port, **more)).start()
        assert (writing(), await others(), operator_socket.find(port)) == (set(), set(), None)
        return await is_served(tmp_path, port, **more)

    assert asyncio.run(run())
    assert writing() == set()


def test_a_port_for_grpc_that_is_taken_leaves_the_one_for_http_free(tmp_path: Path) -> None:
    port = free_port()

    async def run() -> bool:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(SetupError, match="gRPC cannot listen"):
                await Server(MODELS / "echo.py", config(tmp_path, port, grpc_port=taken.getsockname()[1])).start()
            assert (writing(), await others(), operator_socket.find(port)) == (set(), set(), None)
        return await is_served(tmp_path, port)

    assert asyncio.run(run())


def test_a_front_that_cannot_open_closes_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    class Shut:
        """A front whose port is had and cannot be opened."""

        address = ""

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def bind(self) -> None: ...
        async def open(self) -> None:
            raise OSError("cannot be opened")

        def stop_accepting(self) -> None: ...
        async def close(self, patience_s: float) -> int:
            return 0

        def read_again(self) -> None: ...
        def gauges(self) -> dict[str, Any]:
            return {}

    async def run() -> bool:
        with pytest.raises(OSError, match="cannot be opened"):
            await Server(MODELS / "echo.py", config(tmp_path, port), [HttpFront, Shut]).start()
        assert (writing(), await others(), operator_socket.find(port)) == (set(), set(), None)
        return await is_served(tmp_path, port)

    assert asyncio.run(run())


def test_a_guest_whose_model_is_mended_starts_when_its_host_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model.py"
    model.write_text("import timebound as tb\n\nclass Echo(tb.Model):\n    infer = None\n")
    guest = tb.asgi(model, workers=1, profiles="none", history=str(tmp_path / "history"))

    async def run() -> None:
        with pytest.raises(SetupError):
            await guest.start()
        assert (writing(), await others()) == (set(), set())
        model.write_text((MODELS / "echo.py").read_text())
        async with guest as app:
            assert (await app.gateway.ask("echo", {"value": 3})).value["value"] == 3

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert writing() == set()


HELD = """
import timebound as tb
from pathlib import Path

class Held(tb.Model):
    def load(self):
        if Path({gate!r}).exists():
            Path({gate!r}).read_bytes()  # nobody ever writes to it

    def infer(self, batch):
        return batch
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Where a pipe holds workers that load, once it is there."""
    (tmp_path / "held.py").write_text(HELD.format(gate=str(tmp_path / "gate")))
    return tmp_path / "gate"


def numbers(gateway: tb.Gateway) -> list[int]:
    return [worker["worker"] for worker in gateway.status()["workers"]]


async def until_held(gate: Path) -> int:
    """Return once a worker is held; let go by closing what is returned."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody has opened the other end
                await asyncio.sleep(0.01)


async def until_there_are(gateway: tb.Gateway, count: int) -> None:
    async with asyncio.timeout(20.0):
        while len(numbers(gateway)) != count:
            await asyncio.sleep(0.01)


def test_a_start_that_is_cancelled_leaves_no_worker_and_no_thread(gate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "may_stand_still", lambda number: True)
    os.mkfifo(gate)

    async def run() -> None:
        gateway = tb.Gateway(gate.with_name("held.py"), workers=1, profiles="none")
        starting = asyncio.create_task(gateway.start())
        end = await until_held(gate)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        os.close(end)
        await until_there_are(gateway, 0)
        assert "output-out" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(run())


def test_who_stops_waiting_for_more_workers_leaves_none_that_are_dead(gate: Path) -> None:
    async def run() -> None:
        async with tb.Gateway(gate.with_name("held.py"), workers=1, profiles="none") as gateway:
            os.mkfifo(gate)
            scaling = asyncio.create_task(gateway.scale(2))
            end = await until_held(gate)
            scaling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scaling
            os.close(end)
            await until_there_are(gateway, 1)
            assert (await gateway.ask("held", b"a")).value == b"a"
            gate.unlink()
            await gateway.scale(2)
            await until_there_are(gateway, 2)

    asyncio.run(run())
