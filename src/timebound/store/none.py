"""The store that keeps nothing."""

from __future__ import annotations

from typing import Any

from timebound.clock import Clock
from timebound.config import Config
from timebound.store.base import OWNER, Key, Settle, Stored
from timebound.store.memory import Memory


def open_store(config: Config, *, clock: Clock, **_: Any) -> Forgetful:
    """Nothing has to be set up."""
    del config
    return Forgetful(0, clock)


class Forgetful(Memory):
    """Keeps nothing: every claim is granted. Attempts that come while a request is in work still join it."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        settle(OWNER)

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        """Nothing to do."""

    def abandon(self, key: Key) -> None:
        """Nothing to do."""
