"""Which store: none, memory or Redis, as configured."""

from __future__ import annotations

import asyncio

from timebound.clock import Clock
from timebound.config import Config
from timebound.events import Events
from timebound.store.base import OWNER, Key, Settle, Store, Stored
from timebound.store.memory import Memory


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Store:
    """The store that the options ask for; raises `SetupError` if the URL cannot be read."""
    if config.store == "none":
        return Forgetful(0, clock)
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


class Forgetful(Memory):
    """Keeps nothing: every claim is granted. Attempts that come while a request is in work still join it."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        settle(OWNER)

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        """Nothing to do."""

    def abandon(self, key: Key) -> None:
        """Nothing to do."""
