"""Results in this process's memory: the least recently used go when there are too many bytes of them."""

from __future__ import annotations

import asyncio
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


_AT_ONCE = 256
"""Entries that are listed or forgotten in one turn of the event loop: there may be a million."""


class _Kept(msgspec.Struct, gc=False):
    stored: Stored
    expires: float
    bytes: int
    number: int
    """Later ones have larger numbers."""


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
        self._number = 0
        self._clearing: set[asyncio.Task[int]] = set()
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
        async for name, key in self._in_turns(model):
            kept = self._kept.get((name, key))
            if kept is not None and kept.expires > now:
                result = kept.stored.result
                size = len(result.outcome.body)
                yield Entry(name, key, result.quality, size, kept.stored.at, kept.expires - now)

    async def clear(self, model: str | None, key: str | None = None) -> int:
        """Forget one key, a model's results or all; how many there were. What is kept meanwhile stays."""
        if model is not None and key is not None:
            return self.forget((model, key))
        count, now, last = 0, self._clock.now(), self._number
        async for each in self._in_turns(model):
            kept = self._kept.get(each)
            if kept is not None and kept.number <= last:
                count += kept.expires > now
                self._drop(each)
        return count

    async def _in_turns(self, model: str | None) -> AsyncIterator[Key]:
        """The keys that there are now, of one model or of all; others have their turn in between."""
        keys = list(self._kept)
        for place, key in enumerate(keys, 1):
            if model in (None, key[0]):
                yield key
            if not place % _AT_ONCE:
                await asyncio.sleep(0)

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
        self._number += 1
        self._kept[key] = _Kept(stored, self._clock.now() + keep_s, size, self._number)
        self.memory_bytes += size
        while self.memory_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def forget(self, key: Key) -> int:
        """Forget one key; how many there were."""
        kept = self._kept.get(key)
        if kept is None:
            return 0
        self._drop(key)
        return int(kept.expires > self._clock.now())

    def clear_soon(self, model: str | None, key: str | None = None) -> None:
        """Clear without waiting for that."""
        if model is not None and key is not None:
            self.forget((model, key))
            return
        task = asyncio.get_running_loop().create_task(self.clear(model))
        self._clearing.add(task)  # asyncio holds tasks weakly
        task.add_done_callback(self._clearing.discard)

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
