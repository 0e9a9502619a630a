"""The gateway's side of the workers: their slots, the frames to and from them, and what runs where."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from timebound.errors import WireError
from timebound.types import Loss, Outcome, Report, Timing
from timebound.workers import wire

log = logging.getLogger("timebound.workers")


class Dispatch(Protocol):
    """Who is told about slots; the scheduler's dispatcher."""

    def slot_up(self, slot: Slot) -> None: ...
    def slots_down(self, slots: Sequence[Slot], loss: Loss) -> None: ...
    def report(self, slot: Slot, report: Report) -> None: ...
    def retire(self, slots: Sequence[Slot], done: Callable[[], None]) -> None: ...
    def strain(self, *, is_on: bool) -> None: ...


class Slot(asyncio.Protocol):
    """One batch at a time in a worker, over a socket of its own."""

    def __init__(
        self,
        worker: int,
        number: int,
        siblings: int,
        dispatch: Dispatch,
        *,
        on_lost: Callable[[], None],
        on_hang: Callable[[], None],
    ) -> None:
        self.worker = worker
        self.number = number
        self.siblings = siblings
        """Slots of its worker, itself included; each has a core."""
        self._dispatch = dispatch
        self._on_lost = on_lost
        self.kill_worker = on_hang
        """Ends the whole worker, because a batch hangs here."""
        self.items = 0
        """Items it was given so far."""
        self._transport: asyncio.Transport | None = None
        self._reader = wire.FrameReader()
        self._batch_id: int | None = None

    def __repr__(self) -> str:
        return f"Slot({self.worker}.{self.number})"

    async def open(self, sock: socket.socket) -> None:
        """Take over the gateway's end of the slot's socket and offer the slot for work."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=sock)

    def send(self, head: wire.Batch, payloads: Sequence[bytes]) -> None:
        """Start a batch here."""
        self._batch_id = head.id
        self.items += len(payloads)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(wire.encode(head, payloads))

    def decide(self, batch_id: int, *, go: bool) -> None:
        """Tell the slot whether its batch goes on with the next member."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(wire.encode(wire.Decision(batch_id, go)))

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for head, body in self._reader.feed(data):
                self._receive(head, body)
        except WireError as error:
            log.error("slot %s breaks the wire format: %s", self, error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()

    def _receive(self, head: wire.Head, body: memoryview) -> None:
        if not isinstance(head, wire.Outcomes) or head.id != self._batch_id:
            raise WireError(f"expected the outcomes of batch {self._batch_id}, got {head!r:.80}")
        parts = wire.split(body, head.lengths)
        outcomes = [
            Outcome(bytes(part), code, media) for part, code, media in zip(parts, head.codes, head.media, strict=True)
        ]
        timing = Timing(head.prepare_s, head.infer_s, head.finish_s)
        report = Report(
            outcomes, timing, head.members, head.of_members, head.votes, head.is_note, head.is_short_of_memory
        )
        self._dispatch.report(self, report)


class Control(asyncio.Protocol):
    """The worker's life: `on_frame` gets what it says, `on_close` is called once when it is gone."""

    def __init__(self, on_frame: Callable[[wire.Head], None], on_close: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_close = on_close
        self._reader = wire.FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for head, _ in self._reader.feed(data):
            self._on_frame(head)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_close()

    def send(self, head: wire.Head) -> None:
        """Tell the worker something; ignored if it is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(wire.encode(head))
