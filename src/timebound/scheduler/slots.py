"""Which slots are free, which run a batch, and which leave when theirs is done."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from timebound.scheduler.pending import pending_of
from timebound.scheduler.ticket import Batch, Ticket
from timebound.types import Outcome, Quality, Report, Result

Slot = Hashable


class Slots(Protocol):
    """What the dispatcher does with slots; the gateway's side of the workers."""

    def send(self, slot: Slot, batch: Batch, bodies: list[bytes], ask_after_s: float) -> None: ...
    def decide(self, slot: Slot, batch: Batch, *, go: bool) -> None: ...
    def worker_of(self, slot: Slot) -> Hashable: ...
    def kill(self, slot: Slot) -> None: ...


class Running(msgspec.Struct, eq=False):
    """A batch on a slot, with all the tickets it was sent with: the scheduler's own list shrinks as tickets leave."""

    batch: Batch
    tickets: list[Ticket]
    stage_started: float
    is_hung: bool = False
    """Its worker has been killed for it; the slot is not down yet."""

    def result(self, place: int, outcome: Outcome, report: Report) -> Result:
        """What the report says of the ticket at this place, with how it came about."""
        ticket = self.tickets[place]
        return Result(
            outcome,
            quality=Quality.FULL if report.is_final else Quality.PARTIAL,
            members=report.members,
            of_members=report.of_members,
            batch_size=len(self.tickets),
            queue_s=self.batch.started - ticket.arrived,
            timing=report.timing,
            votes=report.votes.get(place, ""),
            version=pending_of(ticket).info.version,
        )


class Floor:
    """Every slot that is up is in `free` or in `running`; those of `leaving` are in `running` for the last time."""

    def __init__(self) -> None:
        self.free: dict[Slot, None] = {}  # a dict keeps the order in which slots became free
        self.running: dict[Slot, Running] = {}
        self.leaving: dict[Slot, Callable[[], None]] = {}

    def __len__(self) -> int:
        """How many can take batches, now or after the one they have."""
        return len(self.free) + len(self.running) - len(self.leaving)

    def begin(self, slot: Slot, running: Running) -> None:
        """A free slot takes a batch."""
        del self.free[slot]
        self.running[slot] = running

    def end(self, slot: Slot) -> bool:
        """Its batch is over. Whether the slot is free now: one that was leaving has left."""
        del self.running[slot]
        left = self.leaving.pop(slot, None)
        if left is not None:
            left()
            return False
        self.free[slot] = None
        return True

    def lose(self, slot: Slot) -> Running | None:
        """It is gone, and with it the batch it ran, if it ran one."""
        self.free.pop(slot, None)
        self.leaving.pop(slot, None)
        return self.running.pop(slot, None)

    def retire(self, slots: Iterable[Slot], done: Callable[[], None]) -> None:
        """These take no more batches; `done` is called when they run none. Lost ones are not waited for."""
        slots = list(slots)
        busy = {slot for slot in slots if slot in self.running}

        def idle(slot: Slot) -> None:
            busy.discard(slot)
            if not busy:
                done()

        for slot in slots:
            self.free.pop(slot, None)
        for slot in busy:
            self.leaving[slot] = partial(idle, slot)
        if not busy:
            done()

    def batches(self) -> list[Batch]:
        """Those whose slot has not been killed for them."""
        return [running.batch for running in self.running.values() if not running.is_hung]
