"""The results in a Redis as a list: for people who look through them or have them forgotten."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import hiredis

from timebound.errors import StoreUnavailable
from timebound.store.base import Entry
from timebound.store.link import Down, Link
from timebound.store.value import UnknownLayout, decode


class Listing:
    """Everything whose Redis key begins with `start`, as {start}{model}:{key}. Raises `StoreUnavailable`."""

    def __init__(self, link: Link, start: str) -> None:
        self._link = link
        self._start = start

    async def entries(self, model: str | None) -> AsyncIterator[Entry]:
        """Every result, of one model or of all; one that comes or goes meanwhile may be missing."""
        async for keys in self._scan(model):
            for key in keys:
                entry = await self._entry(key)
                if entry is not None:
                    yield entry

    async def remove(self, model: str | None, key: str | None) -> int:
        """Remove one key, a model's results or all; how many there were."""
        if model is not None and key is not None:
            return int(await self._ask("UNLINK", f"{self._start}{model}:{key}"))
        count = 0
        async for keys in self._scan(model):
            count += int(await self._ask("UNLINK", *keys))
        return count

    async def _entry(self, key: bytes) -> Entry | None:
        try:
            value, left_ms = await asyncio.gather(self._link.ask("GET", key), self._link.ask("PTTL", key))
            stored = decode(value or b"")
        except Down as error:
            raise StoreUnavailable(str(error)) from None
        except (UnknownLayout, hiredis.ReplyError):
            return None  # it expired meanwhile, is of a later version, or somebody else's
        model, _, name = key.decode(errors="replace").removeprefix(self._start).partition(":")
        size = len(stored.result.outcome.body)
        return Entry(model, name, stored.result.quality, size, stored.at, max(0.0, left_ms / 1e3))

    async def _scan(self, model: str | None) -> AsyncIterator[list[bytes]]:
        """The Redis keys, some at a time."""
        start = self._start
        if model is not None:
            # Redis takes a pattern; whoever asks gave a name.
            start += re.sub(r"([*?\[\]\\^-])", r"\\\1", model) + ":"
        cursor = b"0"
        while True:
            cursor, keys = await self._ask("SCAN", cursor, "MATCH", f"{start}*", "COUNT", "500")
            if keys:
                yield keys
            if cursor == b"0":
                return

    async def _ask(self, *command: Any) -> Any:
        try:
            return await self._link.ask(*command)
        except (Down, hiredis.ReplyError) as error:
            raise StoreUnavailable(str(error)) from None
