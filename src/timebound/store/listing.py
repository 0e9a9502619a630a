"""The results in a Redis as a list: for people who look through them or have them forgotten."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Protocol

import hiredis

from timebound.errors import StoreUnavailable
from timebound.store.base import Entry
from timebound.store.line import Down, Line
from timebound.store.value import LONGEST, UnknownLayout, decode


class Source(Protocol):
    """Where the keys are. `start` is how the pattern of results begins; raises `Down` or `hiredis.ReplyError`."""

    start: str

    def name(self, key: bytes) -> str:
        """What follows that start in a key."""

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """All keys like this pattern, some at a time; those given together are in one slot."""

    async def ask(self, key: bytes, *command: Any) -> Any:
        """Have a command about this key answered."""


class OneRedis:
    """All keys behind one line."""

    def __init__(self, line: Line, start: str) -> None:
        self._line = line
        self.start = start

    def name(self, key: bytes) -> str:
        return key.decode(errors="replace").removeprefix(self.start)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        cursor = b"0"
        while True:
            cursor, keys = await self._line.ask("SCAN", cursor, "MATCH", pattern, "COUNT", "500")
            if keys:
                yield keys
            if cursor == b"0":
                return

    async def ask(self, key: bytes, *command: Any) -> Any:
        return await self._line.ask(*command)


class Listing:
    """Every result of a source, by model and key. Raises `StoreUnavailable`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def entries(self, model: str | None) -> AsyncIterator[Entry]:
        """Every result, of one model or of all; one that comes or goes meanwhile may be missing."""
        async for keys in self._scan(model):
            for key in keys:
                entry = await self._entry(key)
                if entry is not None:
                    yield entry

    async def remove(self, model: str | None) -> int:
        """Remove a model's results or all; how many there were."""
        count = 0
        async for keys in self._scan(model):
            count += await self.unlink(*keys)
        return count

    async def unlink(self, *keys: bytes) -> int:
        """Remove these keys of one slot; how many there were."""
        try:
            return int(await self._source.ask(keys[0], "UNLINK", *keys))
        except (Down, hiredis.ReplyError) as error:
            raise StoreUnavailable(str(error)) from None

    async def _entry(self, key: bytes) -> Entry | None:
        try:
            asked = (
                self._source.ask(key, "GETRANGE", key, "0", str(LONGEST)),
                self._source.ask(key, "PTTL", key),
            )
            value, left_ms = await asyncio.gather(*asked)
            stored = decode(value)
        except Down as error:
            raise StoreUnavailable(str(error)) from None
        except (UnknownLayout, hiredis.ReplyError):
            return None  # it expired meanwhile, is of a later version, or somebody else's
        model, _, name = self._source.name(key).partition(":")
        size = len(stored.result.outcome.body)
        return Entry(model, name, stored.result.quality, size, stored.at, max(0.0, left_ms / 1e3))

    async def _scan(self, model: str | None) -> AsyncIterator[list[bytes]]:
        pattern = self._source.start
        if model is not None:
            # Redis takes a pattern; whoever asks gave a name.
            pattern += re.sub(r"([*?\[\]\\^-])", r"\\\1", model) + ":"
        try:
            async for keys in self._source.scan(f"{pattern}*"):
                yield keys
        except (Down, hiredis.ReplyError) as error:
            raise StoreUnavailable(str(error)) from None
