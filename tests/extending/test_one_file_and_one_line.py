"""What the house is open for: each of these is the file beside this one, and one line in a table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from tests.extending.alone_policy import Alone
from tests.extending.counting_store import Counting
from tests.extending.line_front import LineFront
from tests.extending.list_surface import Lists
from tests.models.onnx_files import save_doubler

import timebound as tb
from timebound import server
from timebound.config import resolve
from timebound.http import routes
from timebound.http.front import HttpFront
from timebound.http.surfaces import SURFACES
from timebound.scheduler import POLICIES
from timebound.server import Server
from timebound.types import ENGINES, STORES

pytestmark = pytest.mark.live

ECHO = Path(__file__).parents[1] / "models" / "echo.py"


def test_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORES, "counting", "tests.extending.counting_store")

    async def asked() -> tuple[int, list[str]]:
        async with tb.Gateway(ECHO, store="counting://here", workers=1, profiles="none") as gateway:
            answers = [await gateway.ask("echo", {"value": 1}, key="k") for _ in range(2)]
            return cast(Counting, gateway.store).claims, [answer.source for answer in answers]

    assert asyncio.run(asked()) == (2, ["computed", "stored"])


def test_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(ENGINES, "numpy", "tests.extending.numpy_engine")
    net = tb.onnx(save_doubler(tmp_path / "twice.onnx"), engine="numpy")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(net(rows), rows * 2)


def test_a_surface_with_several_items_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SURFACES", (*SURFACES, Lists))

    async def asked() -> list[tuple[int, Any, list[str]]]:
        config = resolve({"port": 0, "workers": 1, "profiles": "none"}, {}, Path.cwd())
        serving = Server(ECHO, config)
        await serving.start()
        try:
            async with httpx.AsyncClient(base_url=serving.address) as client:
                bodies: list[Any] = [
                    [{"value": 1}, {"value": 2}, {"value": 3}],
                    [{"value": 4}, {"wrong": 5}],
                    [{"value": 6, "id": "k"}, {"value": 7, "id": "k"}],
                ]
                answers = [await client.post("/many/echo", json=body) for body in bodies]
                native = await client.post("/inference", json={"value": 8})
        finally:
            await serving.stop()
        return [(answer.status_code, answer.json(), []) for answer in (*answers, native)]

    def said(value: int, name: str | None = None) -> dict[str, Any]:
        return {"value": value, "id": name}

    (many, wrong, reused, native) = asyncio.run(asked())
    assert many[:2] == (200, [said(1), said(2), said(3)])
    assert wrong[:2] == (422, {"error": "bad_input"})
    assert reused[:2] == (200, [said(6, "k"), {"error": "key_reused"}])
    assert native[:2] == (200, said(8))


def test_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "alone", Alone)

    async def asked() -> set[int]:
        async with tb.Gateway(ECHO, policy="alone", workers=1, profiles="none") as gateway:
            answers = await asyncio.gather(*(gateway.ask("echo", {"value": value}) for value in range(20)))
            assert [answer.value["value"] for answer in answers] == list(range(20))
            return {answer.batch_size for answer in answers}

    assert asyncio.run(asked()) == {1}


def test_a_listener(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "FRONTS", (HttpFront, LineFront))
    monkeypatch.setattr(LineFront, "path", tmp_path / "socket")

    async def asked() -> list[bytes]:
        config = resolve({"port": 0, "workers": 1, "profiles": "none"}, {}, Path.cwd())
        serving = Server(ECHO, config)
        await serving.start()
        try:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
            writer.write(b'echo {"value": 5}\nnobody {"value": 5}\n')
            lines = [await reader.readline() for _ in range(2)]
            writer.close()
        finally:
            await serving.stop()
        return lines

    assert asyncio.run(asked()) == [b'{"value":5,"id":null}\n', b"unknown_model\n"]
