"""Timebound as a guest: an ASGI app that another server runs, and callers who give up on it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.tools.callers import Left, ask, give_up_on
from tests.live.gate import Gate
from tests.live.serving import MODELS, PATIENCE_S, clean_environment, eventually

import timebound as tb
from timebound.config import Config
from timebound.guest import Guest

pytestmark = pytest.mark.live


def test_a_thousand_callers_who_give_up_hurt_neither_the_dispatcher_nor_a_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def item(number: int) -> dict[str, Any]:
        key = {"id": f"k{number % 50}"} if number % 3 == 0 else {}
        return {"value": number % 50, **key}

    with caplog.at_level(logging.WARNING):
        left = asyncio.run(give_up_on(MODELS / "echo.py", "/inference", item, 1000))
    assert left == Left(exceptions=[], workers_lost=0, waiting=0, statuses={200})
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("is_watching", [True, False])
def test_a_caller_who_is_cancelled_has_left(gate: Gate, is_watching: bool) -> None:
    async def run() -> tuple[int, int]:
        guest = tb.asgi(MODELS / "waits.py", workers=1, slots=1, profiles="none")
        guest.is_watching = is_watching
        async with guest as app:
            body = json.dumps({"value": 1, "gate": str(gate.path)}).encode()
            first, second = (asyncio.create_task(ask(app, body, "/wait")) for _ in range(2))
            while app.gateway.requests.waiting < 2:
                await asyncio.sleep(0.01)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            left = app.gateway.requests.waiting
            gate.open()
            return left, await first

    assert asyncio.run(run()) == (1, 200)


def test_what_the_host_takes_of_a_limit_is_left_to_it(gate: Gate) -> None:
    async def run() -> float:
        guest = tb.asgi(MODELS / "waits.py", workers=1, slots=1, profiles="none")
        guest.unseen_s = 0.5
        async with guest as app:
            body, began = json.dumps({"value": 1, "gate": str(gate.path)}).encode(), time.monotonic()
            status = await ask(app, body, "/wait", headers=[(b"timebound-timeout-ms", b"1000")])
            assert status == 504
            return time.monotonic() - began

    assert asyncio.run(run()) < 0.9
    gate.open()


def test_what_the_host_takes_is_left_to_it_behind_a_proxy_that_stamps_too(gate: Gate) -> None:
    async def run() -> float:
        guest = tb.asgi(MODELS / "waits.py", workers=1, slots=1, profiles="none", trusted_proxies="127.0.0.1")
        guest.unseen_s = 0.5
        async with guest as app:
            body, began = json.dumps({"value": 1, "gate": str(gate.path)}).encode(), time.monotonic()
            came = b"t=%.3f" % (time.time() - 0.4)
            headers = [(b"timebound-timeout-ms", b"1200"), (b"x-request-start", came)]
            status = await ask(app, body, "/wait", headers=headers)
            assert status == 504
            return time.monotonic() - began

    assert asyncio.run(run()) < 0.6  # 0.4 s are gone, and 0.5 s are the host's
    gate.open()


def test_a_guest_below_another_apps_path_answers_there() -> None:
    async def run() -> tuple[int, int]:
        async with tb.asgi(MODELS / "echo.py", workers=1, profiles="none", max_body=100) as app:
            below = await ask(app, b'{"value": 3}', "/models/inference", root_path="/models")
            large = await ask(app, b"x", headers=[(b"content-length", b"101")])
            return below, large

    assert asyncio.run(run()) == (200, 413)


@pytest.mark.parametrize(("says_ids", "ids"), [(True, ["r-1", "r-2"]), (False, [])])
def test_a_host_that_writes_request_ids_itself_is_spared_ours(says_ids: bool, ids: list[str]) -> None:
    async def run() -> list[httpx.Response]:
        guest = tb.asgi(MODELS / "echo.py", workers=1, profiles="none")
        guest.says_ids = says_ids
        async with guest as app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as http:
            bodies = {"r-1": {"value": 3}, "r-2": {"value": "three"}}
            return [await http.post("/inference", json=body, headers={"x-request-id": i}) for i, body in bodies.items()]

    answers = asyncio.run(run())
    assert [answer.status_code for answer in answers] == [200, 422]
    assert [each for answer in answers for each in answer.headers.get_list("x-request-id")] == ids
    assert all(answer.headers["content-length"] == str(len(answer.content)) for answer in answers)
    assert answers[0].headers["timebound-quality"] == "full"


def test_a_guest_uses_the_cores_that_its_host_leaves_it() -> None:
    async def run() -> int:
        async with Guest(MODELS / "echo.py", Config(profiles="none"), cores=3) as app:
            while app.gateway.supervisor.slots_up < 3:
                await asyncio.sleep(0.01)
            return app.gateway.supervisor.slots_up

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == 3


def test_before_its_start_it_says_what_is_missing() -> None:
    assert asyncio.run(ask(tb.asgi(MODELS / "echo.py"), b"{}")) == 503
    with pytest.raises(tb.SetupError, match="lifespan"):
        _ = tb.asgi(MODELS / "echo.py").gateway


@contextmanager
def hosted(
    folder: Path, target: Path, options: str = "", *, level: str = "warning"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """uvicorn with the guest, on a free port."""
    (folder / "main.py").write_text(
        f"import timebound as tb\napp = tb.asgi({str(target)!r}, workers=1, profiles='none'{options})\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "main:app", "--port", str(port), "--log-level", level]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process, port
    finally:
        process.kill()
        process.communicate()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_uvicorn_starts_it_asks_it_and_stops_it(tmp_path: Path) -> None:
    with hosted(tmp_path, MODELS / "echo.py") as (process, port):
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: is_ready(url), "uvicorn to be ready")
        answer = httpx.post(f"{url}/inference", json={"value": 4}, trust_env=False)
        assert (answer.json()["value"], answer.headers["timebound-quality"]) == (4, "full")
        assert "timebound_answers_total" in httpx.get(f"{url}/metrics", trust_env=False).text
        # Whoever comes through another server may come from anywhere: the operator needs a token.
        assert httpx.post(f"{url}/v1/reload", trust_env=False).status_code == 403
        worker = httpx.get(f"{url}/v1/models", trust_env=False).json()["workers"][0]["pid"]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert not Path(f"/proc/{worker}").exists()


def test_uvicorn_goes_on_telling_its_own_life(tmp_path: Path) -> None:
    with hosted(tmp_path, MODELS / "echo.py", level="info") as (process, port):
        eventually(lambda: is_ready(f"http://127.0.0.1:{port}"), "uvicorn to be ready")
        process.send_signal(signal.SIGTERM)
        requests, life = process.communicate(timeout=PATIENCE_S)
    assert '"GET /readyz HTTP/1.1" 200' in requests
    for line in ("Application startup complete", f"Uvicorn running on http://127.0.0.1:{port}", "Shutting down"):
        assert line in life


def test_uvicorn_is_told_why_it_cannot_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import timebound as tb\nraise ValueError('no weights')\n")
    with hosted(tmp_path, broken) as (process, _):
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 3
        assert "no weights" in said
