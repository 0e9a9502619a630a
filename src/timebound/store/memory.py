"""Results in this process's memory: the least recently used go when there are too many bytes of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from timebound.clock import Clock
from timebound.config import Config
from timebound.store.base import CONFLICT, JOINED, OWNER, Claim, Entry, Key, Kind, Settle, Stored
from timebound.types import Quality

_OVERHEAD_BYTES = 800
"""What an entry costs besides its texts: the objects around them, measured with tracemalloc."""


class _Kept(msgspec.Struct, gc=False):
    stored: Stored
    expires: float
    bytes: int


class _Running(msgspec.Struct):
    fingerprint: bytes
    waiting: list[Settle]


def open_store(config: Config, *, clock: Clock, **_: Any) -> Memory:
    """A memory of the size that the options say."""
    return Memory(config.store_memory, clock)


class Memory:
    """A store for one process; also what a shared store keeps near."""

    trouble: str | None = None

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._running: dict[Key, _Running] = {}
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    def hurry(self, deadline_s: float) -> None:
        """Nothing is waited for."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        known = self.look(key, fingerprint)
        if known is not None:
            settle(known)
        elif (running := self._running.get(key)) is None:
            self._running[key] = _Running(fingerprint, [])
            settle(OWNER)
        elif running.fingerprint != fingerprint:
            settle(CONFLICT)
        else:
            running.waiting.append(settle)
            settle(JOINED)

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        self.keep(key, stored, keep_s)
        running = self._running.pop(key, None)
        for settle in running.waiting if running is not None else ():
            settle(Claim(Kind.RESULT, stored.as_joined()))

    def abandon(self, key: Key) -> None:
        running = self._running.pop(key, None)
        for settle in running.waiting if running is not None else ():
            self.claim(key, running.fingerprint, settle)  # type: ignore[union-attr]

    async def read(self, key: Key) -> Stored | Kind | None:
        kept = self._find(key)
        if kept is not None:
            return kept.stored
        return Kind.OWNER if key in self._running else None

    async def entries(self, model: str | None) -> AsyncIterator[Entry]:
        now = self._clock.now()
        for (name, key), kept in list(self._kept.items()):
            if model in (None, name) and kept.expires > now:
                result = kept.stored.result
                size = len(result.outcome.body)
                yield Entry(name, key, result.quality, size, kept.stored.at, kept.expires - now)

    async def clear(self, model: str | None, key: str | None = None) -> int:
        return self.forget(model, key)

    # ------------------------------------------------------------------ what a shared store uses of it

    def look(self, key: Key, fingerprint: bytes) -> Claim | None:
        """RESULT or CONFLICT if the key is known to be finished."""
        kept = self._find(key)
        if kept is None:
            return None
        return Claim(Kind.RESULT, kept.stored) if kept.stored.fingerprint == fingerprint else CONFLICT

    def keep(self, key: Key, stored: Stored, keep_s: float) -> None:
        """Keep a result; the first answer stays, unless it was partial and this one is full."""
        known = self._find(key)
        if known is not None:
            if known.stored.result.quality is not Quality.PARTIAL or stored.result.quality is not Quality.FULL:
                return
            self._drop(key)
        # A key's characters may take four bytes each.
        size = len(stored.result.outcome.body) + 4 * len(key[1]) + _OVERHEAD_BYTES
        if size > self._max_bytes:
            return
        self._kept[key] = _Kept(stored, self._clock.now() + keep_s, size)
        self.memory_bytes += size
        while self.memory_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def forget(self, model: str | None, key: str | None = None) -> int:
        """Forget one key, a model's results or all; how many there were."""
        if model is not None and key is not None:
            known = [(model, key)] if (model, key) in self._kept else []
        else:
            known = [each for each in self._kept if model in (None, each[0])]
        now = self._clock.now()
        count = sum(self._kept[each].expires > now for each in known)
        for each in known:
            self._drop(each)
        return count

    def _find(self, key: Key) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.expires <= self._clock.now():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def _drop(self, key: Key) -> None:
        self.memory_bytes -= self._kept.pop(key).bytes
