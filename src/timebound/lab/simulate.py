"""A server in simulated time around the real scheduler: each request is sent once and answered before its deadline.

The model answers, or a fallback does. `benchmarks/tools/simulate.py` adds what only tests and benchmarks look into:
clients that send again, workers that die, and somebody who sees every decision.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from timebound.scheduler import Batch, Scheduler, Ticket


class Pace(Protocol):
    """What the simulator must know of a model's speed."""

    @property
    def members(self) -> int: ...

    def draw(self, rng: random.Random, batch: int, size: float, member: int, busy: int) -> float:
        """One member, this time, with `busy` slots at work."""
        ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the outside world."""

    at: float
    model: str
    size: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The simulated world. Seconds everywhere."""

    speeds: Mapping[str, Pace]
    deadline_s: float = 1.0
    slots: int = 2
    margin_s: float = 0.010
    seed: int = 1


class Job(Ticket, kw_only=True):
    """A request, and what came of it: so many members answered (none: its fallback did)."""

    answered_at: float = inf
    members: int = 0


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Simulation:
    """One run with a scheduler that knows the models."""

    def __init__(self, setting: Setting, arrivals: Iterable[Arrival], scheduler: Scheduler) -> None:
        self.setting = setting
        self.now = 0.0
        self.rng = random.Random(setting.seed)
        self.scheduler = scheduler
        self.jobs: list[Job] = []
        self.running: dict[int, Batch] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._arrivals = iter(arrivals)
        scheduler.set_slots(setting.slots)

    def play(self) -> None:
        """To the end; every request has had its answer by then."""
        self._next_arrival()
        while self._events:
            at, _, action, arguments = heapq.heappop(self._events)
            self.now = max(self.now, at)
            action(*arguments)

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, action, arguments))

    # ------------------------------------------------------------------ gateway

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._at(arrival.at, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        deadline = self.now + self.setting.deadline_s
        job = Job(len(self.jobs), arrival.model, deadline, self.now, arrival.size)
        self.jobs.append(job)
        self._at(deadline - self.setting.margin_s, self._answer, job)
        if self.scheduler.offer(job, self.now) is not None:
            self._answer(job)
        self._poll()
        self._next_arrival()

    def _answer(self, ticket: Ticket) -> None:
        """The best there is goes out, once: the model's answer, or the fallback."""
        assert isinstance(ticket, Job)
        if ticket.answered_at == inf:
            self.scheduler.withdraw(ticket)
            ticket.answered_at, ticket.members = self.now, ticket.members_done

    # ------------------------------------------------------------------ workers

    def _poll(self) -> None:
        """Fill the free slots; answer what was given up."""
        while (batch := self.scheduler.take(self.now)) is not None:
            self.running[batch.id] = batch
            self._begin(batch)
        for aside in self.scheduler.set_aside():
            self._answer(aside.ticket)

    def _begin(self, batch: Batch) -> None:
        """The next member of a batch."""
        pace = self.setting.speeds[batch.model]
        seconds = pace.draw(self.rng, len(batch), batch.size, batch.members_done, len(self.running))
        self._at(self.now + seconds, self._member_done, batch, seconds)

    def _member_done(self, batch: Batch, seconds: float) -> None:
        leave: Iterable[Ticket] = list(batch.tickets)
        goes_on = False
        if batch.members_done + 1 == self.setting.speeds[batch.model].members:
            self.scheduler.batch_done(batch, seconds, self.now)
        else:
            step = self.scheduler.member_done(batch, seconds, self.now)
            goes_on = step.go
            leave = step.leave if goes_on else leave
        for ticket in leave:
            self._answer(ticket)
        if goes_on:
            self._begin(batch)
        else:
            del self.running[batch.id]
        self._poll()
