"""Two gateways on one store, what they are told, and results to keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, Self

from timebound.clock import ManualClock, MonotonicClock
from timebound.events import Events, Kept, NotKept, TakenOver
from timebound.store.base import Claim, Key, Kind, Store, Stored
from timebound.store.cluster import Cluster
from timebound.store.memory import Memory
from timebound.store.redis import open_redis
from timebound.store.shared import Shared
from timebound.types import Outcome, Quality, Result, Source

PATIENCE_S = 20.0
PRINT = b"fingerprint-of-1"
OTHER_PRINT = b"fingerprint-of-2"
KEEP_S = 600.0


def stored(body: bytes = b'{"answer":1}', *, is_full: bool = True, fingerprint: bytes = PRINT) -> Stored:
    """A result as a gateway keeps it."""
    quality, members = (Quality.FULL, 3) if is_full else (Quality.PARTIAL, 2)
    return Stored(fingerprint, Result(Outcome(body), quality, Source.STORED, members, 3, 4), 1700000000.5)


class Told:
    """What a claim came to, in order."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self._changed = asyncio.Event()

    def __call__(self, claim: Claim) -> None:
        self.claims.append(claim)
        self._changed.set()

    @property
    def kinds(self) -> list[Kind]:
        return [claim.kind for claim in self.claims]

    async def last(self, count: int = 1) -> Claim:
        """The answer number `count`, once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.claims) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.claims[count - 1]


def ask(store: Store, key: Key, fingerprint: bytes = PRINT) -> Told:
    """Claim a key."""
    told = Told()
    store.claim(key, fingerprint, told)
    return told


async def claim(store: Store, key: Key, fingerprint: bytes = PRINT) -> Kind:
    """Claim a key, and wait for the first answer."""
    return (await ask(store, key, fingerprint).last()).kind


async def eventually(look: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Look until there is something to see."""
    end = asyncio.get_running_loop().time() + within_s
    while not (found := look()):
        assert asyncio.get_running_loop().time() < end, f"waited {within_s:g} s in vain: {what}"
        await asyncio.sleep(0.01)
    return found


class Gateways(Protocol):
    """`one` and `two` share what is kept. `settled` returns when what was written is there to be read."""

    @property
    def one(self) -> Store: ...
    @property
    def two(self) -> Store: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
    async def settled(self) -> None: ...
    async def pass_time(self, seconds: float) -> None: ...


class MemoryGateways:
    """One memory, and its clock is moved by hand."""

    def __init__(self) -> None:
        self._clock = ManualClock(1000.0)
        self.one = Memory(10_000_000, self._clock)
        self.two = self.one

    async def __aenter__(self) -> Self:
        await self.one.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.one.stop()

    async def settled(self) -> None:
        """Everything is at once."""

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)


class RedisGateways:
    """Two stores with a connection each to one Redis, or to a cluster."""

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        self._url, self._namespace = url, namespace
        self._options = {"lease_s": 2.0, "patience_s": 5.0, **options}
        self.events = Events()
        self.heard: list[Any] = []
        kinds: tuple[type[Any], ...] = (Kept, NotKept, TakenOver)
        for kind in kinds:
            self.events.on(kind, self.heard.append)

    def open(self, **options: Any) -> Shared | Cluster:
        """One more gateway, not started."""
        clock = MonotonicClock()
        make = Cluster if "-cluster://" in self._url else open_redis
        return make(
            self._url,
            near=Memory(10_000_000, clock),
            clock=clock,
            events=self.events,
            loop=asyncio.get_running_loop(),
            namespace=self._namespace,
            **{**self._options, **options},
        )

    async def __aenter__(self) -> Self:
        self.one, self.two = self.open(), self.open()
        await self.one.start()
        await self.two.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.one.stop()
        await self.two.stop()

    async def settled(self) -> None:
        # Replies come in order, so a later question is answered after what was written; messages go to all before.
        for store in (self.one, self.two, self.one):
            await store.read(("nobody", "asks"))
        if isinstance(self.one, Cluster):
            await asyncio.sleep(0.1)  # its parts and its messages go different ways

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def reasons(self) -> list[str]:
        """Why results were not kept."""
        return [event.reason for event in self.heard if isinstance(event, NotKept)]
