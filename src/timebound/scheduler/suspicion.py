"""Who is to blame for a lost worker: makes suspects, finds the guilty one, refuses its body to whoever brings it."""

from __future__ import annotations

from collections.abc import Iterable

from timebound.clock import Clock
from timebound.events import Events, Quarantined
from timebound.scheduler.answers import Answers
from timebound.scheduler.pending import Pending
from timebound.scheduler.quarantine import Quarantine, mark_of
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Ticket
from timebound.types import Loss


class Suspicion:
    """The quarantine, and what follows from it for requests."""

    def __init__(self, scheduler: Scheduler, answers: Answers, *, clock: Clock, events: Events) -> None:
        self._scheduler = scheduler
        self._answers = answers
        self._clock = clock
        self._events = events
        self._quarantine = Quarantine()

    def is_locked_up(self, pending: Pending) -> bool:
        """Whether this body may not run now; one that may be guilty is marked as a suspect."""
        if not len(self._quarantine):
            return False
        mark, now = mark_of(pending), self._clock.now()
        if self._quarantine.locked_s(mark, now):
            return True
        pending.ticket.is_suspect = self._quarantine.is_suspect(mark, now)
        return False

    def blame(self, tickets: list[Ticket], loss: Loss, *, is_alone: bool) -> Ticket | None:
        """Make suspects of a lost batch's items; the one that is proven guilty, if it is."""
        # The first SIGKILL from outside says nothing about the batch, and a process that was stopped never does.
        is_own_doing = loss in (Loss.CRASHED, Loss.HUNG)
        if not is_own_doing and loss is not Loss.KILLED:
            return None
        now = self._clock.now()
        for ticket in tickets:
            if is_own_doing or ticket.losses:
                ticket.is_suspect = True
                self._quarantine.suspect(mark_of(ticket.payload), now)
        if is_alone and len(tickets) == 1 and self._quarantine.lost_alone(mark_of(tickets[0].payload), loss, now):
            return tickets[0]
        return None

    def lock_up(self, guilty: Ticket, loss: Loss) -> None:
        """It fails, and so does whoever waits with the same body; attempts to come are told at once."""
        pending: Pending = guilty.payload
        mark = mark_of(pending)
        self._events.emit(Quarantined(pending.info.name, self._quarantine.locked_s(mark, self._clock.now()), loss))
        self._answers.give_up(pending, "crashes_worker")
        for other in self._answers.queued():
            if mark_of(other) == mark:
                self._scheduler.withdraw(other.ticket)
                self._answers.give_up(other, "crashes_worker")

    def clear(self, tickets: Iterable[Ticket]) -> None:
        """Their batch was answered: none of them is what killed a worker."""
        if not len(self._quarantine):
            return
        for ticket in tickets:
            if (ticket.is_suspect or ticket.losses) and ticket.payload is not None:
                ticket.is_suspect = False
                self._quarantine.clear(mark_of(ticket.payload))
