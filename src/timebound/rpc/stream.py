"""One stream of requests: answered in the order they came, whichever is done first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from timebound.admission.held import SMALL
from timebound.errors import Refusal
from timebound.http.surfaces.base import Reply
from timebound.rpc.reader import Named
from timebound.rpc.surface import refused
from timebound.rpc.unread import Unread
from timebound.rpc.wire import field

AHEAD = 8
"""Requests that are computed at once; from then on the stream waits."""
AHEAD_BYTES = 8_000_000
"""What their answers may have together, as far as those before them tell; one there may be in any case."""

_UNREAD = Refusal(
    "the answers before this one fill the memory; read them, then ask again", code="memory_full", retry_after_s=1
)


class Asked:
    """A request until its reply is there; call `leave` if nobody waits for it any more.

    In a stream its answer may wait long for the client to read those before it: `unread` counts it until then.
    """

    __slots__ = ("_kept", "_leave", "_unread", "done", "name")

    def __init__(self, unread: Unread | None = None) -> None:
        self.done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.name = Named()
        self._leave: Callable[[], None] | None = None
        self._unread = unread
        self._kept = 0

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """The reply."""
        if self.done.done():
            return
        if self._unread is not None and len(body) > SMALL:
            self._kept = self._unread.keep(body)
            if not self._kept:
                status, head, body = refused(_UNREAD)
        self.done.set_result((status, head, body))

    def may_leave(self, leave: Callable[[], None] | None) -> None:
        """What there is to do if it is left."""
        self._leave = leave

    def forget(self) -> None:
        """Its reply was taken; it is counted on until `leave`."""
        self._leave = None
        self.done = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Nobody waits for it any more."""
        if self._leave is not None and (not self.done.done() or self.done.cancelled()):
            self._leave()
        self._leave = None
        self.done.cancel()
        if self._unread is not None and self._kept:
            self._unread.let_go(self._kept)
            self._kept = 0


class Stream:
    """Reads on while earlier requests are computed, as long as there is not too much of them."""

    def __init__(self, context: Any, ask: Callable[[bytes], Asked], closing: asyncio.Future[None]) -> None:
        self._context = context
        self._ask = ask
        self._closing = closing
        self._waiting: deque[Asked] = deque()
        self._reading: asyncio.Future[Any] | None = None
        self._has_more = True
        self._answered = 0
        self._largest = 0
        """Bytes of the largest answer so far."""

    async def run(self) -> None:
        """Until the client has said all and has all answers; raises `Refusal` if the server stops."""
        waiting = self._waiting
        try:
            while self._has_more or waiting:
                await self._wait()
                while waiting and waiting[0].done.done():
                    message = in_band(waiting[0])
                    self._answered += 1
                    self._largest = max(self._largest, len(message))
                    waiting[0].forget()  # it may take long to write: once is enough in memory
                    await self._write(message)
                    del message
                    waiting.popleft().leave()  # or it would keep its message until somebody looks for garbage
        finally:
            if self._reading is not None:
                self._reading.cancel()
            for asked in waiting:
                asked.leave()

    async def _write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.InternalError:  # as gRPC calls it if the client leaves meanwhile
            raise asyncio.CancelledError from None

    async def _wait(self) -> None:
        """Until a message is here or the next answer."""
        if self._reading is None and self._has_more and self._may_ask_more():
            self._reading = asyncio.ensure_future(self._context.read())
        awaited: set[asyncio.Future[Any]] = {self._waiting[0].done if self._waiting else self._closing}
        if self._reading is not None:
            awaited.add(self._reading)
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if self._reading is not None and self._reading.done():
            message, self._reading = self._reading.result(), None
            self._has_more = message is not grpc.aio.EOF
            if self._has_more:
                self._waiting.append(self._ask(message))
        elif not self._waiting:
            raise Refusal("the server is stopping", code="draining", retry_after_s=1)

    def _may_ask_more(self) -> bool:
        ahead = len(self._waiting)
        if not ahead:
            return True
        # The first answers tell how large they are: until then three are computed at once, then four, and so on.
        return ahead <= 2 + self._answered and ahead < AHEAD and (ahead + 1) * self._largest <= AHEAD_BYTES


def in_band(asked: Asked) -> bytes:
    """An answer or an error as a ModelStreamInferResponse."""
    status, _, body = asked.done.result()
    if status == 200:
        return field(2, body)
    named = field(1, asked.name.model.encode()) + field(3, asked.name.id.encode())
    return field(1, body) + field(2, named)
