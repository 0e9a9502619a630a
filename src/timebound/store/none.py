"""The store that keeps nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from timebound.config import Config
from timebound.store.base import OWNER, Entry, Key, Kind, Settle, Stored


def open_store(config: Config, **_: Any) -> Forgetful:
    """Nothing has to be set up."""
    del config
    return Forgetful()


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
