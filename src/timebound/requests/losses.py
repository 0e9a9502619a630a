"""What follows when a worker is lost: who runs again, who is a suspect, who runs alone, and who is not run any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from timebound.clock import Clock
from timebound.errors import CopyLost
from timebound.events import BatchesShrunk, BatchLost, Events, Quarantined
from timebound.requests.answers import Answers
from timebound.requests.floor import Floor, Sent, Slot, Slots
from timebound.requests.groups import Group, Groups, group_of
from timebound.requests.kin import Kin, Likeness
from timebound.requests.quarantine import SUSPECT_S, Quarantine, mark_of, same_bodies
from timebound.requests.request import Request
from timebound.requests.trials import Trials
from timebound.requests.watchdog import Watchdog
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch
from timebound.types import Loss

_OWN_DOING = (Loss.CRASHED, Loss.HUNG)
"""A loss by what the worker ran."""


class Losses:
    """Blames lost workers on whoever is to blame. A request that meets no loss meets nothing of this."""

    def __init__(
        self,
        scheduler: Scheduler,
        floor: Floor,
        answers: Answers,
        *,
        slots: Slots,
        clock: Clock,
        events: Events,
    ) -> None:
        self._scheduler = scheduler
        self._floor = floor
        self._answers = answers
        self._slots = slots
        self._worker_of = slots.worker_of
        self._clock = clock
        self._events = events
        self._quarantine = Quarantine()
        self._kin = Kin()
        self._groups = Groups()
        self._last_own_doing = -inf
        self.trials = Trials(slots.worker_of)
        """Where suspects run, while there are any."""
        answers.watch = Watchdog(floor.watched, limit_s=self._hang_limit_s, on_hang=self._kill).look
        self.suspects: Mapping[bytes, object] = self._quarantine.records
        """The bodies that may have killed a worker; usually none."""
        self.traits: Mapping[bytes, object] = self._kin.traits
        """What those that did have in common; usually nothing."""

    # ------------------------------------------------------------------ workers

    def found(self, slot: Slot) -> None:
        """A slot came up."""
        self.trials.found(self._worker_of(slot))

    def lost(self, slots: Sequence[Slot], batches: Iterable[Sent], loss: Loss) -> None:
        """A worker with these slots is gone, and these batches with it: they run again, as long as there is time."""
        if slots and loss is not Loss.GONE:
            self.trials.lost(self._worker_of(slots[0]))
        for slot in slots:
            self._floor.ran.pop(self._worker_of(slot), None)
            self._floor.stalled.pop(self._worker_of(slot), None)
        batches, is_row = list(batches), self._is_row(loss)
        count = sum(len(sent.requests) for sent in batches)
        for sent in batches:
            self._events.emit(BatchLost(sent.batch.model, len(sent.requests), loss, sent.run))
            self._drop_copies(sent)
            if loss is Loss.KILLED:
                self.shrink(sent, is_certain=False)
            guilty = self._blame(sent.requests, loss, of=count, is_row=is_row)
            self._scheduler.batch_lost(sent.batch, self._clock.now(), guilty)
            if guilty is not None:
                self._lock_up(guilty, loss)
            self._answers.forget_unwanted(sent.requests)

    def _drop_copies(self, sent: Sent) -> None:
        """Copies are not tried again: no second worker is risked for an answer that nobody waits for."""
        for request in [request for request in sent.requests if request.is_copy and request.attempts]:
            sent.requests.remove(request)
            self._answers.give(request, CopyLost())

    def shrink(self, sent: Sent, *, is_certain: bool) -> None:
        """Memory was short, or may have been: smaller batches for a while."""
        batch, items, now = sent.batch, len(sent.requests), self._clock.now()
        limit = self._scheduler.short_of_memory(batch, items, now, is_certain=is_certain)
        if limit is not None:
            self._events.emit(BatchesShrunk(batch.model, limit))

    # ------------------------------------------------------------------ hangs

    @property
    def is_stuck(self) -> bool:
        """Whether every slot has been at its batch for far longer than any batch takes."""
        now, limit_s = self._clock.now(), self._scheduler.hang_limit_s
        batches = [sent.batch for sent in self._floor.running.values()]
        return not self._floor.free and bool(batches) and all(now - b.started > limit_s(b) for b in batches)

    def _kill(self, hung: Batch) -> None:
        """A batch hangs: its worker is killed; what that means for its slots is heard when it is gone."""
        for slot, sent in self._floor.running.items():
            if sent.batch is hung:
                sent.is_hung = True
                self._slots.kill(slot)
                return

    def _hang_limit_s(self, batch: Batch) -> float:
        """How long a batch may run; one of copies alone no longer than two deadlines: others need the slot."""
        for worker in [worker for worker, other in self._floor.stalled.items() if other.closed]:
            del self._floor.stalled[worker]  # at each look is soon enough
        limit_s = self._scheduler.hang_limit_s(batch)
        requests = [request for request in batch.tickets if isinstance(request, Request)]
        if requests and all(request.is_copy for request in requests):
            return min(limit_s, 2 * requests[0].info.deadline_s)
        return limit_s

    # ------------------------------------------------------------------ guilt

    def is_locked_up(self, request: Request) -> bool:
        """Whether this body may not run now; one that may be guilty is marked as a suspect."""
        mark, now = mark_of(request), self._clock.now()
        if self._quarantine.locked_s(mark, now):
            return True
        likeness = self._kin.meet(request, now)
        if likeness is Likeness.DEADLY:
            return True
        request.is_kin = request.can_wait = likeness is Likeness.KIN
        if request.is_kin:
            self._quarantine.suspect(mark, now, is_kin=True)
        request.is_suspect = request.is_kin or self._quarantine.is_suspect(mark, now)
        return False

    def clear(self, requests: Iterable[Request]) -> None:
        """Their batch was answered: none of them is what killed a worker."""
        for request in requests:
            if request.is_suspect or request.losses:
                request.is_suspect = False
                self._quarantine.clear(mark_of(request))
            self._kin.answered(request)

    def _is_row(self, loss: Loss) -> bool:
        """Whether workers are lost by what they run again and again: one such loss may be an accident."""
        if loss not in _OWN_DOING:
            return False
        now, last = self._clock.now(), self._last_own_doing
        self._last_own_doing = now
        return now - last < SUSPECT_S

    def _blame(self, requests: list[Request], loss: Loss, *, of: int, is_row: bool) -> Request | None:
        """Make suspects of a lost batch's items, `of` so many in that worker; the one that is proven guilty."""
        # The first SIGKILL from outside, or device that fails, says nothing about the batch, and a process that was
        # stopped never does.
        is_own_doing = loss in _OWN_DOING
        if not is_own_doing and loss not in (Loss.KILLED, Loss.DEVICE):
            return None
        now, is_alone = self._clock.now(), of == len(requests) == 1
        for request in requests:
            if is_own_doing or request.losses:
                request.is_suspect = True
                request.can_wait |= is_row
                self._quarantine.suspect(mark_of(request), now, is_kin=request.is_kin)
            if is_own_doing:
                self._kin.blame(request, now, 1.0 / of)
        if is_own_doing and (group := self._groups.lost(requests)) is not None:
            self._take_apart(group)
        if is_alone and self._quarantine.lost_alone(mark_of(requests[0]), loss, now):
            return requests[0]
        return None

    def _take_apart(self, group: Group) -> None:
        """What waits of this group is suspect as well, and runs alone."""
        for other in self._answers.queued():
            if not other.is_suspect and group_of(other) == group:
                self._scheduler.withdraw(other)
                other.is_wanted = other.is_suspect = other.is_kin = other.can_wait = True
                verdict = self._scheduler.offer(other, self._clock.now())
                if verdict is not None:
                    self._answers.give_up(other, verdict.reason, verdict.retry_after_s)

    def in_hand(self, request: Request, losses: Iterable[Loss]) -> None:
        """Its preparation ended processes beside its worker, each time alone; workers go on, it does not."""
        mark, now = mark_of(request), self._clock.now()
        if [loss for loss in losses if self._quarantine.lost_alone(mark, loss, now)]:
            self._lock_up(request, Loss.CRASHED)
        else:
            self._answers.give_up(request, "crashes_worker")

    def has_fetched(self, request: Request) -> None:
        """It came to the end of that, and its process lives."""
        if request.is_suspect:
            request.is_suspect = False
            self._quarantine.clear(mark_of(request))

    def has_ended_one(self, request: Request) -> bool:
        """It ended a process in which it fetched, while no other's code ran: whether that proves it guilty.

        Its like are not blamed: all fetch in one process, so the innocent may not have been answered for as long.
        """
        mark, now = mark_of(request), self._clock.now()
        is_guilty = self._quarantine.lost_alone(mark, Loss.CRASHED, now)
        if is_guilty:
            self._events.emit(Quarantined(request.info.name, self._quarantine.locked_s(mark, now), Loss.CRASHED))
        return is_guilty

    def _lock_up(self, guilty: Request, loss: Loss) -> None:
        """It fails, and so does whoever waits with the same body; attempts to come are told at once."""
        mark, group = mark_of(guilty), self._groups.proven(guilty)
        self._kin.blame(guilty, self._clock.now())
        self._events.emit(Quarantined(guilty.info.name, self._quarantine.locked_s(mark, self._clock.now()), loss))
        self._answers.give_up(guilty, "crashes_worker")
        waiting = self._answers.queued()
        same = set(map(id, same_bodies(guilty, waiting)))
        for other in waiting:
            if id(other) in same or (group is not None and group_of(other) == group):
                self._scheduler.withdraw(other)
                self._answers.give_up(other, "crashes_worker")

    # ------------------------------------------------------------------ trials

    def open_slot(self, now: float) -> Slot | None:
        """The next free slot that is not kept for suspects; of those that share devices, where one is free first."""
        floor, trials = self._floor, self.trials
        if not floor.devices:
            return trials.open_slot(floor.free)
        able = [slot for slot in floor.free if trials.worker is None or self._worker_of(slot) != trials.worker]
        free_at = self._scheduler.free_at
        return min(able, key=lambda slot: free_at(floor.devices.get(slot), now), default=None)

    def next_trial(self, now: float) -> tuple[Slot, Batch] | None:
        """The next suspects, and a slot of a worker that runs nothing else."""
        floor, trials = self._floor, self.trials
        if trials.slot in floor.running:
            return None
        slot = trials.choose(floor.free, floor.running, floor.leaving)
        # The last worker is not risked while others need it and the next one is on its way, unless time runs out.
        is_needed = bool(floor.running) or self._scheduler.has_others
        is_last = bool(trials.missing) and trials.is_last(floor.free, floor.running)
        if is_last and self._scheduler.suspects_can_wait(now, is_needed=is_needed):
            trials.end()
            return None
        server = floor.devices.get(slot)
        batch = self._scheduler.take_suspects(now, server) if slot is not None else None
        if batch is not None and slot is not None:
            return slot, batch
        if not self._scheduler.has_suspects:
            trials.end()
        return None
