"""A profile that was saved on other hardware: what it says is overruled by the first batches."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import timebound as tb
from timebound.profile import ProfileFile, this_machine
from timebound.scheduler import ModelSpec, Scheduler

pytestmark = pytest.mark.live

MODEL = """
import time
import timebound as tb

class Constant(tb.Model):
    path = "/constant"
    deadline = 10.0

    def infer(self, batch):
        time.sleep(0.1)
        return batch
"""


def profile_of_ten_milliseconds_per_item() -> dict[str, object]:
    scheduler = Scheduler()
    scheduler.add_model(ModelSpec("constant", 10.0))
    for _ in range(40):
        for items in (1, 2, 4, 8, 16, 32, 64):
            scheduler.observe("constant", items, 1.0, 0.010 * items)
    return scheduler.profile()


async def rounds(target: Path, folder: Path, count: int) -> list[float]:
    """The seconds of so many rounds, each of a hundred requests at once."""
    took = []
    async with tb.Gateway(target, workers=1, slots=1, profiles=str(folder)) as gateway:
        for _ in range(count):
            began = time.monotonic()
            answers = await asyncio.gather(*(gateway.ask("constant", b"%d" % number) for number in range(100)))
            took.append(time.monotonic() - began)
            assert {answer.quality for answer in answers} == {"full"}
    return took


def test_a_hundred_at_once_are_batched_from_the_third_round_on(tmp_path: Path) -> None:
    target, folder = tmp_path / "app.py", tmp_path / "profiles"
    target.write_text(MODEL)
    ProfileFile(folder, target).write(profile_of_ten_milliseconds_per_item(), this_machine(1))
    took = asyncio.run(rounds(target, folder, 5))
    assert max(took[2:]) <= 1.5, took
