"""A Redis or Valkey cluster that several gateways share: a shared store per hash tag, and one inbox for all.

Every key belongs to one of 32 tags by its hash, so the results, claims and leases that a script touches are in one
slot, and the tags are spread evenly over the slots. What happens to a node happens to its tags alone.

    {ns}:{tag}:r:{model}:{key}    as on one Redis, see claim.lua, with the tag in braces
    {ns}:i:{gateway}, {ns}:all    channels; a cluster carries messages from any node to any other
"""

from __future__ import annotations

import asyncio
import os
from binascii import crc32, crc_hqx
from collections.abc import AsyncIterator
from functools import partial
from itertools import count as numbers
from typing import Any

from timebound.clock import Clock
from timebound.config import Config
from timebound.errors import SetupError
from timebound.events import Events
from timebound.store.address import read_address
from timebound.store.base import Entry, Key, Kind, Settle, Stored
from timebound.store.lease import InTable
from timebound.store.line import Report
from timebound.store.link import Link
from timebound.store.listing import Listing
from timebound.store.memory import Memory
from timebound.store.scripts import Place
from timebound.store.shared import Shared, open_by

try:
    from timebound.store.lane import Lane, Nodes, OnNodes
except ModuleNotFoundError as missing:
    raise SetupError("a cluster needs redis-py; install it with: pip install 'timebound[cluster]'") from missing

TAGS = 32
"""More would spread keys over more nodes, and each costs a renewed lease per gateway."""
_SLOTS = 16384
_PING_S = 0.5
"""How often the inbox is asked whether it is still there: nothing else would notice that a node fell silent."""


def tags() -> list[str]:
    """For each equal share of the slots the first number whose slot is in it; they never change."""
    found: dict[int, str] = {}
    for number in numbers():
        share = crc_hqx(str(number).encode(), 0) % _SLOTS * TAGS // _SLOTS
        found.setdefault(share, str(number))
        if len(found) == TAGS:
            return [found[share] for share in range(TAGS)]
    raise AssertionError


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Cluster:
    """The cluster of the options' URL; raises `SetupError` if that cannot be read."""
    return open_by(Cluster, config, clock=clock, events=events, loop=loop)


class Cluster:
    """A shared store in parts."""

    def __init__(
        self,
        url: str,
        *,
        near: Memory,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        namespace: str = "timebound",
        lease_s: float = 2.0,
        patience_s: float = 0.1,
    ) -> None:
        address = read_address(url)
        report = Report(address.shown)
        gateway = os.urandom(8).hex()
        self._shown = address.shown
        self._loop = loop
        self._near = near
        self._nodes = Nodes(address, loop, patience_s)
        self._place = Place(namespace, namespace, gateway)
        self._parts: list[Shared] = []
        self._by_name: dict[str, Shared] = {}
        for tag in tags():
            keys = f"{namespace}:{{{tag}}}"
            part = Shared(
                Place(keys, namespace, gateway, brings_values=False),
                InTable(keys, gateway, lease_s),
                partial(Lane, self._nodes, keys, loop, report, patience_s=patience_s),
                near=near,
                clock=clock,
                events=events,
                loop=loop,
                shown=address.shown,
            )
            self._parts.append(part)
            self._by_name[keys] = part
        self._inbox = Link(
            self._nodes.next_address,
            loop,
            patience_s=max(patience_s, _PING_S),
            report=report,
            greeting=lambda: [("SUBSCRIBE", self._place.inbox, self._place.everyone)],
            on_up=self._listening,
            on_push=self._heard,
        )
        self._pinging: asyncio.TimerHandle | None = None
        self._listing = Listing(OnNodes(self._nodes, namespace))

    def _part(self, key: Key) -> Shared:
        return self._parts[crc32(f"{key[0]}:{key[1]}".encode()) % TAGS]

    # ------------------------------------------------------------------ coming and going

    async def start(self) -> None:
        # The first one finds the nodes, or out that there are none; a refusal is the same for all.
        try:
            await self._parts[0].start()
        except SetupError:
            await self._nodes.stop()
            raise
        await asyncio.gather(*(part.start() for part in self._parts[1:]))
        await self._inbox.start()
        if self._inbox.is_refused:
            reason = self._inbox.reason
            await self.stop()
            raise SetupError(f"the store at {self._shown} refuses: {reason}")

    async def stop(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        await asyncio.gather(*(part.stop() for part in self._parts))
        await self._inbox.stop()
        await self._nodes.stop()

    @property
    def trouble(self) -> str | None:
        troubles = [part.trouble for part in self._parts if part.trouble is not None]
        if len(troubles) == TAGS:
            return troubles[0]
        if troubles:
            return f"{troubles[0]} (for {len(troubles)} of {TAGS} parts of the keys)"
        return None if self._inbox.reason is None else f"redis: no messages: {self._inbox.reason}"

    def hurry(self, deadline_s: float) -> None:
        for part in self._parts:
            part.hurry(deadline_s)

    @property
    def memory_bytes(self) -> int:
        return self._near.memory_bytes

    def _listening(self) -> None:
        for part in self._parts:
            part.ask_all_again()
        if self._pinging is not None:
            self._pinging.cancel()
        self._ping()

    def _ping(self) -> None:
        self._inbox.send(None, "PING")
        self._pinging = self._loop.call_later(_PING_S, self._ping)

    def _heard(self, message: list[Any]) -> None:
        """Give a message to the part whose key it is about; all of them keep the same results near."""
        if message[0] == b"message" and message[2]:
            name = bytes(message[2][20:]).partition(b":c:")[0].decode(errors="replace")
            self._by_name.get(name, self._parts[0]).heard(message)

    # ------------------------------------------------------------------ keys

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        self._part(key).claim(key, fingerprint, settle)

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        self._part(key).complete(key, stored, keep_s)

    def abandon(self, key: Key) -> None:
        self._part(key).abandon(key)

    async def read(self, key: Key) -> Stored | Kind | None:
        return await self._part(key).read(key)

    def entries(self, model: str | None) -> AsyncIterator[Entry]:
        return self._listing.entries(model)

    async def clear(self, model: str | None, key: str | None = None) -> int:
        if model is not None and key is not None:
            return await self._part((model, key)).clear(model, key)
        count = await self._listing.remove(model)
        await self._near.clear(model)
        self._inbox.send(None, "PUBLISH", self._place.everyone, f"{model or ''}:")
        return count
