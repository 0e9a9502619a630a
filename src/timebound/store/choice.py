"""Which store: none, memory or Redis, as configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from timebound.clock import Clock
from timebound.config import Config
from timebound.events import Events
from timebound.store.base import OWNER, Entry, Key, Kind, Settle, Store, Stored
from timebound.store.memory import Memory


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Store:
    """The store that the options ask for; raises `SetupError` if the URL cannot be read."""
    if config.store == "none":
        return Forgetful()
    near = Memory(config.store_memory, clock)
    if config.store == "memory":
        return near
    from timebound.store.redis import Redis  # servers without it need not load it

    return Redis(
        config.store,
        near=near,
        clock=clock,
        events=events,
        loop=loop,
        namespace=config.store_namespace,
        lease_s=config.store_lease,
        patience_s=config.store_patience,
    )


class Forgetful:
    """Keeps nothing: every claim is granted. Attempts that come while a request is in work still join it."""

    trouble: str | None = None
    memory_bytes = 0

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    def hurry(self, deadline_s: float) -> None:
        """Nothing is waited for."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        settle(OWNER)

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        """Nothing to do."""

    def abandon(self, key: Key) -> None:
        """Nothing to do."""

    async def read(self, key: Key) -> Stored | Kind | None:
        return None

    async def entries(self, model: str | None) -> AsyncIterator[Entry]:
        nothing: list[Entry] = []
        for entry in nothing:
            yield entry

    async def clear(self, model: str | None, key: str | None = None) -> int:
        return 0
