"""The gateway's side of the understudy: asks it for fallbacks and sizes, many in one frame."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from typing import TypeAlias, cast

import msgspec

from timebound.types import Outcome
from timebound.workers import wire
from timebound.workers.errands import FALLBACK, SIZE

Done: TypeAlias = Callable[[Outcome, float], None]

_MOST_WAITING = 4096
_GONE = Outcome(b"", code="understudy_gone")


class _Ask(msgspec.Struct):
    number: int
    duty: str
    model: str
    body: bytes
    done: Done


class Understudy(asyncio.Protocol):
    """One process at a time; while it is away questions wait for the next one, up to a limit.

    Whoever asks has a guard of his own and will not wait for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader = wire.FrameReader()
        self._numbers = count(1)
        self._asks: list[_Ask] = []
        self._away: dict[int, _Ask] = {}

    def fallback(self, model: str, body: bytes, done: Callable[[Outcome | None], None]) -> None:
        """Ask for the model's fallback answer; `done` gets None if there is none to be had."""
        self._ask(FALLBACK, model, body, lambda outcome, _: done(None if outcome.code else outcome))

    def size(self, model: str, body: bytes, done: Callable[[float | None], None]) -> None:
        """Ask for the size of a request; `done` gets None if it cannot be told."""
        self._ask(SIZE, model, body, lambda outcome, size: done(None if outcome.code else size))

    async def open(self, sock: socket.socket) -> None:
        """Take over the gateway's end of a new understudy's socket."""
        self._reader = wire.FrameReader()
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._asks:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        lost, self._away = self._away, {}
        for ask in lost.values():
            ask.done(_GONE, 1.0)

    def data_received(self, data: bytes) -> None:
        for head, body in self._reader.feed(data):
            assert isinstance(head, wire.ErrandDone)
            ask = self._away.pop(head.number)
            ask.done(Outcome(bytes(body), head.code, head.media), head.size)

    def _ask(self, duty: str, model: str, body: bytes, done: Done) -> None:
        if len(self._asks) >= _MOST_WAITING:
            done(_GONE, 1.0)
            return
        if not self._asks and self._transport is not None:
            self._loop.call_soon(self._flush)  # what is asked in one turn of the loop goes in one frame
        self._asks.append(_Ask(next(self._numbers), duty, model, body, done))

    def _flush(self) -> None:
        if self._transport is None:
            return
        asks, self._asks = self._asks, []
        self._away.update((ask.number, ask) for ask in asks)
        head = wire.Errand(
            [ask.number for ask in asks],
            [ask.duty for ask in asks],
            [ask.model for ask in asks],
            [len(ask.body) for ask in asks],
        )
        self._transport.writelines(wire.encode(head, [ask.body for ask in asks]))
