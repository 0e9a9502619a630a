"""The contract of a store: who computes a key, who waits for it, and what came of it.

    claim     -> OWNER         compute it, then `complete` or `abandon` it
                 JOINED        someone else computes it; `settle` is called again when that is decided
                 RESULT        it is finished: here it is
                 CONFLICT      the key stands for another body
                 UNAVAILABLE   the store cannot be asked now: compute it; it is shared again when that is possible

Nothing here blocks or raises: a store that is in trouble says UNAVAILABLE, at once or after its patience.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Protocol, TypeAlias

import msgspec

from timebound.clock import Clock
from timebound.config import Config
from timebound.events import Events
from timebound.types import STORES, Result, Source

Key: TypeAlias = tuple[str, str]
"""The name of a model and a request's key."""


class Kind(enum.Enum):
    """What a claim came to."""

    OWNER = "owner"
    JOINED = "joined"
    RESULT = "result"
    CONFLICT = "conflict"
    UNAVAILABLE = "unavailable"


class Stored(msgspec.Struct, frozen=True):
    """A finished request: its result, the fingerprint of its body, and when it was finished (seconds since 1970)."""

    fingerprint: bytes
    result: Result
    at: float

    def as_joined(self) -> Stored:
        """The same, for who waited for it."""
        return msgspec.structs.replace(self, result=msgspec.structs.replace(self.result, source=Source.JOINED))


class Claim(msgspec.Struct, frozen=True):
    """The answer to a claim; `stored` is there with RESULT."""

    kind: Kind
    stored: Stored | None = None


class Entry(msgspec.Struct, frozen=True):
    """One line of a listing."""

    model: str
    key: str
    quality: str
    bytes: int
    at: float
    expires_in_s: float


OWNER = Claim(Kind.OWNER)
JOINED = Claim(Kind.JOINED)
CONFLICT = Claim(Kind.CONFLICT)
UNAVAILABLE = Claim(Kind.UNAVAILABLE)

Settle: TypeAlias = Callable[[Claim], None]


class Store(Protocol):
    """Everything happens on the event loop's thread."""

    async def start(self) -> None:
        """Get ready; raises `SetupError` only for what the operator must change."""

    async def stop(self) -> None:
        """Write what is waiting to be written, and let go of every claim."""

    @property
    def trouble(self) -> str | None:
        """Why keys are not shared with others now, or None."""

    def hurry(self, deadline_s: float) -> None:
        """No model has a shorter deadline than this: wait for others accordingly."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of results kept in this process."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        """Ask who computes this key. `settle` is called once, after JOINED once more; perhaps before this returns."""

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        """Keep a result for `keep_s` seconds and wake who waits for it. A full one replaces a partial one."""

    def abandon(self, key: Key) -> None:
        """Nothing came of this claim; who waits for it may try."""

    async def read(self, key: Key) -> Stored | Kind | None:
        """The result, or `Kind.OWNER` while it is computed somewhere, or None."""

    def entries(self, model: str | None) -> AsyncIterator[Entry]:
        """Every result that is kept, of one model or of all."""

    async def clear(self, model: str | None, key: str | None = None) -> int:
        """Forget one key, a model's results or all; how many there were."""


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Store:
    """The store that the options ask for, a line in `types.STORES`; raises `SetupError` if its URL cannot be read."""
    module = import_module(STORES[config.store.partition(":")[0]])
    opened: Store = module.open_store(config, clock=clock, events=events, loop=loop)
    return opened
