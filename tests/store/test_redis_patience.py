"""How long Redis is waited for."""

from __future__ import annotations

import asyncio

import pytest

from timebound.clock import ManualClock
from timebound.events import Events
from timebound.store.memory import Memory
from timebound.store.redis import open_redis


def test_the_shortest_deadline_bounds_the_patience() -> None:
    async def run() -> None:
        clock = ManualClock()
        loop = asyncio.get_running_loop()
        store = open_redis("redis://127.0.0.1:1/0", near=Memory(1, clock), clock=clock, events=Events(), loop=loop)
        store.hurry(0.05)
        assert store.patience_s == pytest.approx(0.01)
        store.hurry(10.0)
        assert store.patience_s == 0.1

    asyncio.run(run())
