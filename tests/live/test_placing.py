"""Each worker is shown its own GPU first; here on a machine that only says that it has two."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.live.serving import MODELS

import timebound as tb

pytestmark = pytest.mark.live


def seen_by(pid: int) -> str:
    """What a process has as `CUDA_VISIBLE_DEVICES`."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(line.partition(b"=")[2].decode() for line in lines if line.startswith(b"CUDA_VISIBLE_DEVICES="))


async def up(gateway: tb.Gateway, but: int = 0) -> list[int]:
    """The two workers' processes, once both are up and none of them is `but`."""
    async with asyncio.timeout(20):
        while True:
            pids = [int(each["pid"]) for each in gateway.supervisor.describe() if each["is_up"]]
            if len(pids) == 2 and but not in pids:
                return pids
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timebound.gateway.gpus", lambda environment: ["3", "5"])


def test_workers_are_spread_over_the_gpus_and_an_heir_gets_the_place_that_is_free() -> None:
    async def run() -> None:
        async with tb.Gateway(MODELS / "echo.py", workers=2, slots=1, profiles="none") as gateway:
            pids = await up(gateway)
            assert sorted(map(seen_by, pids)) == ["3,5", "5,3"]
            # Started level with the gateway, for they might have fed a GPU; these compute on cores, and go behind it.
            level = os.getpriority(os.PRIO_PROCESS, 0)
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {level + 10}
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                assert sorted(map(seen_by, await up(gateway, but=pid))) == ["3,5", "5,3"]

    asyncio.run(run())


def test_with_device_cpu_workers_see_no_gpu() -> None:
    async def run() -> None:
        async with tb.Gateway(MODELS / "echo.py", workers=2, slots=1, device="cpu", profiles="none") as gateway:
            assert [seen_by(pid) for pid in await up(gateway)] == ["", ""]

    asyncio.run(run())
