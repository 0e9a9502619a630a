"""The dispatcher's share in the life of slots: they come up, leave when their batch is done, or are lost.

A plain request enters nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from timebound.clock import Clock
from timebound.errors import ModelFailed, Refusal
from timebound.events import Events, Unprepared
from timebound.requests.ahead import Ahead
from timebound.requests.answers import Answers
from timebound.requests.floor import Floor, Sent, Slot, Slots
from timebound.requests.losses import Losses
from timebound.requests.models import Models
from timebound.requests.progress import MOST_BYTES, Pieces, followers, tell
from timebound.scheduler.scheduler import Scheduler
from timebound.types import Loss, ModelInfo, Part


class Staff:
    """Hears of slots from those who run workers."""

    ahead: Ahead
    _answers: Answers
    _clock: Clock
    _events: Events
    _floor: Floor
    _infos: Mapping[str, ModelInfo]
    _losses: Losses
    _models: Models
    _scheduler: Scheduler
    _slots: Slots

    def _poll(self) -> None:
        raise NotImplementedError

    def slot_up(self, slot: Slot) -> None:
        """A slot can take batches."""
        self._losses.found(slot)
        self._floor.free[slot] = None
        if any(info.device != "cpu" for info in self._infos.values()):
            self._floor.devices[slot] = self._slots.worker_of(slot)
        self._count_slots()
        self._poll()

    def strain(self, *, is_on: bool) -> None:
        """Whether processes are being started: cores are short then, and answers are given a little earlier."""
        self._answers.strain(is_on=is_on)

    def unprepared(self, slot: Slot, *, is_new: bool) -> None:
        """What this slot runs has a shape that its worker's device did not prepare."""
        batch, worker = self._floor.running[slot].batch, self._slots.worker_of(slot)
        self._events.emit(Unprepared(batch.model))
        if is_new:
            self._floor.stalled[worker] = batch
            for other, sent in self._floor.running.items():  # what shares the device waits for it
                sent.batch.may_stall |= self._slots.worker_of(other) == worker

    def pieces(self, slot: Slot, parts: Mapping[int, list[Part]]) -> None:
        """Pieces of answers came, by the places of their items; what nobody waits for is not computed further."""
        if (sent := self._floor.running.get(slot)) is None:
            return  # it was lost, and this was on its way
        unwanted = [place for place, added in parts.items() if not self._is_wanted(sent, place, added)]
        if unwanted:
            self._slots.leave_off(slot, sent.batch, unwanted)

    def _is_wanted(self, sent: Sent, place: int, parts: list[Part]) -> bool:
        request = sent.requests[place]
        if not (request.attempts or request.owns_key):
            return False
        if request.pieces is None:
            request.pieces = Pieces(sent, request, self.ahead.hold())
        elif request.pieces.strays(sent, parts):
            for attempt in followers(request):
                self._answers.give_best(attempt, "worker_lost")
            request.pieces.begin_again()
        tell(request, request.pieces.add(parts))
        if request.pieces.bytes > MOST_BYTES:
            why = ModelFailed(f"finish() yielded over {MOST_BYTES >> 20} MiB for one answer")
            self._answers.refuse_pieces(request, why)
        elif not request.pieces.has_room():
            detail = "too much is in memory now for the pieces of this answer; ask again a little later"
            self._answers.refuse_pieces(request, Refusal(detail, code="memory_full", retry_after_s=1))
        elif not request.attempts and request.deadline <= self._clock.now():
            self._answers.leave_off(request)
        return bool(request.attempts or request.owns_key)

    def retire(self, slots: Iterable[Slot], done: Callable[[], None]) -> None:
        """Give these slots no more batches; `done` is called when they run none. Lost ones are not waited for."""
        self._floor.retire(slots, done)
        self._count_slots()

    def slots_down(self, slots: Iterable[Slot], loss: Loss = Loss.GONE) -> None:
        """A worker's slots are gone, all at once; what ran there is dispatched again, as long as there is time."""
        slots = list(slots)
        lost = [sent for slot in slots if (sent := self._floor.lose(slot)) is not None]
        self._count_slots()
        for sent in lost:
            self._models.hand_over(sent.batch)
        self._losses.lost(slots, lost, loss)
        self._poll()

    def _count_slots(self) -> None:
        self._scheduler.set_slots(len(self._floor), self._floor.servers)
