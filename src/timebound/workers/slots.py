"""A slot, from both ends: one batch at a time in a worker, over a socket of its own.

The gateway's end is fed by its event loop; the worker's is a thread that blocks until the next batch comes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from timebound.errors import TimeboundError, WireError
from timebound.types import Loss, Part, Report
from timebound.workers import messages, wire
from timebound.workers.failures import is_lost_device
from timebound.workers.telling import ask_gateway

if TYPE_CHECKING:
    from timebound.workers.runner import Runner  # a gateway has no use for it, nor for numpy

log = logging.getLogger("timebound.workers")


class Dispatch(Protocol):
    """Who is told about slots; the scheduler's dispatcher."""

    def slot_up(self, slot: Slot) -> None: ...
    def slots_down(self, slots: Sequence[Slot], loss: Loss) -> None: ...
    def report(self, slot: Slot, report: Report) -> None: ...
    def pieces(self, slot: Slot, parts: Mapping[int, list[Part]]) -> None: ...
    def retire(self, slots: Sequence[Slot], done: Callable[[], None]) -> None: ...
    def unprepared(self, slot: Slot, *, is_new: bool) -> None: ...
    def strain(self, *, is_on: bool) -> None: ...


class Slot(wire.Channel):
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
        super().__init__()
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
        self._batch_id: int | None = None

    def __repr__(self) -> str:
        return f"slot {self.worker}.{self.number}"

    def start(self, batch: messages.Compute, payloads: Sequence[bytes]) -> None:
        """Start a batch here."""
        self._batch_id = batch.id
        self.items += len(payloads)
        self.send(batch, payloads)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()

    def receive(self, head: messages.Head, body: memoryview) -> None:
        if isinstance(head, messages.Unprepared):
            return self._dispatch.unprepared(self, is_new=head.is_new)
        if not isinstance(head, messages.Outcomes) or head.id != self._batch_id:
            if isinstance(head, messages.Pieces) and head.id == self._batch_id:
                return self._dispatch.pieces(self, head.parts)
            raise WireError(f"expected the outcomes of batch {self._batch_id}, got {head!r:.80}")
        return self._dispatch.report(self, head.report)


_AGAIN = ("suspect", "after_loss")
"""Why a batch was chosen that a worker may have died of."""


class Chosen(Protocol):
    """What a slot must know of a batch; the scheduler's."""

    id: int
    model: str
    reason: str
    is_at_once: bool
    quiet_s: float
    sure: int
    server: object | None


class Slots:
    """What the requests' room does with slots."""

    def send(self, slot: Slot, batch: Chosen, bodies: list[bytes], *, ask_after_s: float, votes: list[int]) -> None:
        """Start a batch there; with all members at once they may have the cores of all the worker's slots."""
        cores = slot.siblings if batch.is_at_once else 1
        if batch.server is not None and batch.is_at_once:
            cores = max(2, cores)  # on a device it is a word, and no number
        lengths = [len(body) for body in bodies]
        facts = (batch.quiet_s, batch.reason in _AGAIN, batch.sure)
        slot.start(messages.Compute(batch.id, batch.model, lengths, ask_after_s, cores, votes, *facts), bodies)

    def decide(self, slot: Slot, batch: Chosen, *, go: bool) -> None:
        """Tell it whether its batch goes on with the next member."""
        slot.send(messages.Decision(batch.id, go))

    def leave_off(self, slot: Slot, batch: Chosen, places: list[int]) -> None:
        """Tell it that nobody waits for more pieces of these items."""
        slot.send(messages.Unwanted(batch.id, places))

    def worker_of(self, slot: Slot) -> int:
        """The number of its worker."""
        return slot.worker

    def kill(self, slot: Slot) -> None:
        """End its worker, because a batch hangs there."""
        slot.kill_worker()


# ---------------------------------------------------------------------- the worker's end


def serve_slot(sock: socket.socket, runners: Mapping[str, Runner], room: wire.Room) -> None:
    """Compute the batches that arrive on this slot's socket, in this room, one at a time, until it closes."""
    while True:
        try:
            frame = wire.read_frame(sock, room)
            if frame is None:
                return
            batch, body = frame
            if isinstance(batch, messages.Unwanted):
                continue  # of a batch that is over
            if not isinstance(batch, messages.Compute):
                raise TimeboundError(f"a slot takes batches, not {type(batch).__name__}")
            ask = partial(ask_gateway, sock, batch.id)
            bodies = wire.split(body, batch.lengths)
            ask_after_s, votes, silent = batch.ask_after_s, batch.votes, (batch.sure, batch.quiet_s)
            runner, is_suspect = runners[batch.model], batch.is_suspect
            report = runner.run(bodies, ask, ask_after_s, batch.cores, votes, silent=silent, is_suspect=is_suspect)
            if report is not None:
                wire.write_frame(sock, messages.Outcomes(batch.id, report))
        except OSError:
            return  # the gateway closed its end
        except BaseException as error:  # SystemExit would end only this thread, and the slot with it
            # The pair of sockets can no longer be trusted to be in step: die, and be replaced.
            log.critical("slot failed; the worker leaves", exc_info=True)
            os._exit(messages.DEVICE_LOST if is_lost_device(error) else 70)
