"""A store: memory that counts what it was asked."""

from __future__ import annotations

from typing import Any

from timebound.clock import Clock
from timebound.config import Config
from timebound.store.base import Key, Settle
from timebound.store.memory import Memory


def open_store(config: Config, *, clock: Clock, **_: Any) -> Counting:
    return Counting(config.store_memory, clock)


class Counting(Memory):
    """Everything as in memory."""

    claims = 0

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        self.claims += 1
        super().claim(key, fingerprint, settle)
