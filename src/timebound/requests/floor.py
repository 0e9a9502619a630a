"""Which slots are free, which run a batch, and which leave when theirs is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Protocol

import msgspec

from timebound.requests.request import Request
from timebound.scheduler.ticket import Batch, Server
from timebound.types import Run

Slot = Hashable

_OVERDUE_S = 0.05
"""A batch that takes so much longer than twice its time stands still, as far as those who wait are concerned."""


class Slots(Protocol):
    """What is done with slots; the gateway's side of the workers."""

    def send(self, slot: Any, batch: Batch, bodies: list[bytes], *, ask_after_s: float, votes: list[int]) -> None: ...
    def decide(self, slot: Any, batch: Batch, *, go: bool) -> None: ...
    def leave_off(self, slot: Any, batch: Batch, places: list[int]) -> None: ...
    def worker_of(self, slot: Any) -> Hashable: ...
    def kill(self, slot: Any) -> None: ...


class Sent(msgspec.Struct, eq=False):
    """A batch on a slot, with all the requests it was sent with: the scheduler's own list shrinks as they leave."""

    batch: Batch
    requests: list[Request]
    stage_started: float
    run: Run
    is_hung: bool = False
    """Its worker has been killed for it; the slot is not down yet."""


class Floor:
    """Every slot that is up is in `free` or in `running`; those of `leaving` are in `running` for the last time."""

    def __init__(self) -> None:
        self.free: dict[Slot, None] = {}  # a dict keeps the order in which slots became free
        self.running: dict[Slot, Sent] = {}
        self.leaving: dict[Slot, Callable[[], None]] = {}
        self.devices: dict[Slot, Server] = {}
        """The device of each slot that shares one: that of its worker."""
        self.ran: defaultdict[Hashable, set[tuple[str, int, int]]] = defaultdict(set)
        """What each worker has run: model, items, bucket of their size."""
        self.stalled: dict[Hashable, Batch] = {}
        """By worker, the last batch of a shape that its device had not prepared and that it had never met."""

    @property
    def servers(self) -> int | None:
        """How many servers those are that can take batches; None if each slot is one."""
        if not self.devices:
            return None
        able = {*self.free, *self.running} - self.leaving.keys()
        return len({self.devices.get(slot, slot) for slot in able})

    def __len__(self) -> int:
        """How many can take batches, now or after the one they have."""
        return len(self.free) + len(self.running) - len(self.leaving)

    def run_of(self, request: Request) -> Run | None:
        """The batch that this request is in now; looked for only where a request is given up while it runs."""
        sents = (sent for sent in self.running.values() if any(request is one for one in sent.requests))
        return next((sent.run for sent in sents), None)

    def lose(self, slot: Slot) -> Sent | None:
        """It is gone, and with it the batch it ran, if it ran one."""
        self.free.pop(slot, None)
        self.leaving.pop(slot, None)
        self.devices.pop(slot, None)
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

    def is_moving(self, now: float) -> bool:
        """Whether a slot is free, or has a batch that is not overdue: then what waits may still be computed."""
        batches = [sent.batch for sent in self.running.values()]
        return bool(self.free) or any(now < 2 * each.stage_end - each.stage_started + _OVERDUE_S for each in batches)

    def watched(self) -> list[Batch]:
        """The batches whose slot has not been killed for them."""
        return [sent.batch for sent in self.running.values() if not sent.is_hung]
