"""A server in simulated time around the real scheduler: clients that re-send, a guard, workers that die."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timebound.clock import ManualClock
from timebound.lab.arrivals import Arrival, Users, one_size
from timebound.lab.machine import Pace
from timebound.lab.report import Report, Request, summarise
from timebound.scheduler import Batch, ModelSpec, Scheduler, State, Ticket

Probe = Callable[["Simulation", str, Any], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """The simulated world. Seconds everywhere."""

    speeds: Mapping[str, Pace]
    deadline_s: float = 1.0
    deadlines: dict[str, float] = field(default_factory=dict)  # for models that differ
    slots: int = 2
    margin_s: float = 0.010
    retries: int = 2  # a client that got no answer in time sends again at once, so often
    pause_after_refusal_s: float = 0.1
    can_fallback: bool = True
    has_guard: bool = True
    warm_up: bool = False  # run the start-up ladder before the first request
    until: float = 40.0
    judge_from: float = 6.0
    deaths: Sequence[tuple[float, float]] = ()  # (when, away for): the slot of the oldest batch dies
    slowdowns: Sequence[tuple[float, float]] = ()  # (from, factor)
    crashing: frozenset[int] = frozenset()  # keys of requests that kill their worker
    size: Callable[[random.Random], float] = one_size
    seed: int = 1

    @property
    def judge_until(self) -> float:
        """Later arrivals are served in a world where the load has ended."""
        return self.until - 3.2 * self.deadline_s


@dataclass(slots=True)
class _Job:
    """A request in the gateway: its ticket and whom to tell."""

    request: Request
    ticket: Ticket
    guard_at: float


class Simulation:
    """One run. `probe(simulation, event, thing)` sees every decision."""

    def __init__(
        self,
        setting: Setting,
        arrivals: Iterable[Arrival] = (),
        users: Sequence[Users] = (),
        probe: Probe | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.setting = setting
        self.clock = ManualClock()
        self.rng = random.Random(setting.seed)
        self.scheduler = scheduler or Scheduler(setting.margin_s)
        self.requests: list[Request] = []
        self.batch_sizes: list[int] = []
        self.reasons: Counter[str] = Counter()
        self.alive = setting.slots
        self.running: dict[int, Batch] = {}
        self.wasted_s = self.busy_s = 0.0
        self._probe = probe
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._jobs: dict[int, _Job] = {}
        self._stored: dict[int, tuple[str, int]] = {}
        self._seq = 0
        self._on_answer: dict[int, Callable[[], None]] = {}
        self._arrivals = iter(arrivals)
        self._prepare(users)

    # ------------------------------------------------------------------ the run

    def run(self) -> Report:
        """To the end; every request has had its answer or given up by then."""
        while self._events:
            at, _, action, arguments = heapq.heappop(self._events)
            self.clock.advance(max(0.0, at - self.now))
            action(*arguments)
        setting = self.setting
        return summarise(self.requests, self.batch_sizes, self.reasons, setting.judge_from, setting.judge_until)

    @property
    def now(self) -> float:
        return self.clock.now()

    def deadline_of(self, model: str) -> float:
        return self.setting.deadlines.get(model, self.setting.deadline_s)

    def _prepare(self, users: Sequence[Users]) -> None:
        setting = self.setting
        for name, speed in setting.speeds.items():
            deadline_s = self.deadline_of(name)
            self.scheduler.add_model(ModelSpec(name, deadline_s, speed.members, speed.max_batch, setting.can_fallback))
            if setting.warm_up:
                self._climb(name, speed, deadline_s)
        self.scheduler.set_slots(setting.slots)
        for when, away_s in setting.deaths:
            self._at(when, self._die, away_s)
        for group in users:
            for _ in range(group.count):
                self._at(self.rng.uniform(0.0, group.think_s[1]), self._ask, group)
        self._next_arrival()

    def _climb(self, name: str, speed: Pace, deadline_s: float) -> None:
        """The start-up ladder: 1, 1, 2, 4, ... until a batch takes a sixth of the deadline."""
        batch, seconds = 1, 0.0
        while batch <= speed.max_batch and seconds <= deadline_s / 6:
            for member in range(speed.members):
                seconds = speed.draw(self.rng, batch, 1.0, member, 1)
                self.scheduler.observe(name, batch, 1.0, seconds, member)
            batch *= 2

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, action, arguments))

    def _tell(self, event: str, thing: Any) -> None:
        if self._probe:
            self._probe(self, event, thing)

    # ------------------------------------------------------------------ clients

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._at(arrival.at, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._new_request(arrival.model, arrival.size, arrival.deadline_s, arrival.priority)
        self._next_arrival()

    def _ask(self, group: Users) -> None:
        if self.now >= self.setting.until:
            return

        def think() -> None:
            self._at(self.now + self.rng.uniform(*group.think_s), self._ask, group)

        self._on_answer[len(self.requests)] = think
        self._new_request(group.model, self.setting.size(self.rng))

    def _new_request(self, model: str, size: float, deadline_s: float | None = None, priority: int = 0) -> None:
        request = Request(len(self.requests), model, self.now, size, deadline_s or self.deadline_of(model))
        self.requests.append(request)
        self._send(request, priority)

    def _send(self, request: Request, priority: int = 0) -> None:
        request.attempts += 1
        self._at(self.now + request.deadline_s, self._give_up, request, request.attempts, priority)
        self._receive(request, priority)

    def _give_up(self, request: Request, attempt: int, priority: int) -> None:
        """The client's own timer: it closes the connection, and perhaps sends again."""
        if request.done or request.attempts != attempt:
            return
        again = attempt <= self.setting.retries
        job = self._jobs.get(request.key)
        if job is not None:
            self.scheduler.abandon(job.ticket, self.now, keep=again)
            if not again and job.ticket.state is State.OUT:
                del self._jobs[request.key]
        if again:
            self._send(request, priority)
        else:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        request.done = True
        think = self._on_answer.pop(request.key, None)
        if think:
            think()

    # ------------------------------------------------------------------ gateway

    def _receive(self, request: Request, priority: int) -> None:
        """Replay what is stored, join what is in flight, else queue."""
        if request.key in self._stored:
            self._answer_request(request, *self._stored[request.key])
            return
        deadline = self.now + request.deadline_s
        job = self._jobs.get(request.key)
        if job is None:
            self._seq += 1
            ticket = Ticket(
                self._seq, request.model, deadline, self.now, request.size, priority, request.attempts, request
            )
            job = self._jobs[request.key] = _Job(request, ticket, 0.0)
            verdict = self.scheduler.offer(ticket, self.now)
        else:
            verdict = self.scheduler.rejoin(job.ticket, deadline, self.now)
        job.guard_at = deadline - self.setting.margin_s
        if self.setting.has_guard:
            self._at(job.guard_at, self._guard, job, job.guard_at)
        if verdict is not None:
            self._tell("verdict", (job.ticket, verdict))
            self.reasons[verdict.reason] += 1
            self._no_model_answer(job)
        self._poll()

    def _guard(self, job: _Job, guard_at: float) -> None:
        """The deadline is near: the best there is goes out."""
        if self._jobs.get(job.request.key) is not job or job.guard_at != guard_at:
            return
        self._tell("guard", job.ticket)
        if job.ticket.members_done:
            self._answer(job, self._quality(job.ticket), job.ticket.members_done)
        else:
            self._no_model_answer(job)

    def _no_model_answer(self, job: _Job) -> None:
        """Fallback, or a refusal after which the client waits a moment and sends again."""
        self.scheduler.withdraw(job.ticket)
        if self.setting.can_fallback:
            self._answer(job, "fallback", 0)
            return
        self._jobs.pop(job.request.key, None)
        self._at(self.now + self.setting.pause_after_refusal_s, self._after_refusal, job.request, job.request.attempts)

    def _after_refusal(self, request: Request, attempt: int) -> None:
        if not request.done and request.attempts == attempt:
            self._give_up(request, attempt, 0)

    def _quality(self, ticket: Ticket) -> str:
        return "full" if ticket.members_done == self.setting.speeds[ticket.model].members else "partial"

    def _answer(self, job: _Job, quality: str, members: int) -> None:
        """Exactly once per job."""
        if self._jobs.pop(job.request.key, None) is not job:
            return
        self.scheduler.withdraw(job.ticket)
        if members:
            self._stored[job.request.key] = (quality, members)
        self._answer_request(job.request, quality, members)

    def _answer_request(self, request: Request, quality: str, members: int) -> None:
        if request.done:
            return
        request.answers += 1
        request.quality, request.members, request.answered_at = quality, members, self.now
        request.answered_attempt = request.attempts
        self._tell("answer", request)
        self._finish(request)

    # ------------------------------------------------------------------ workers

    def _poll(self) -> None:
        """Fill the free slots; answer what was given up."""
        while (batch := self.scheduler.take(self.now)) is not None:
            self.running[batch.id] = batch
            self.batch_sizes.append(len(batch))
            self.reasons[batch.reason] += 1
            self._tell("batch", batch)
            self._begin(batch)
        self._collect()
        self._tell("idle" if len(self.running) < self.alive else "busy", None)

    def _collect(self) -> None:
        for aside in self.scheduler.set_aside():
            self._give_fallback(aside.ticket, aside.reason)

    def _give_fallback(self, ticket: Ticket, reason: str) -> None:
        self.reasons[reason] += 1
        self._tell("set_aside", (ticket, reason))
        job = self._jobs.get(ticket.payload.key)
        if job is None or job.ticket is not ticket:
            return
        if ticket.members_done:
            self._answer(job, self._quality(ticket), ticket.members_done)
        elif self.setting.can_fallback:
            self._no_model_answer(job)
        else:
            del self._jobs[ticket.payload.key]  # the client's own timer runs; its retry is a new ticket

    def _begin(self, batch: Batch) -> None:
        speed = self.setting.speeds[batch.model]
        busy = len(self.running)
        seconds = speed.draw(self.rng, len(batch), batch.size, batch.members_done, busy)
        for since, factor in self.setting.slowdowns:
            if self.now >= since:
                seconds *= factor
        if any(ticket.payload.key in self.setting.crashing for ticket in batch.tickets):
            self._at(self.now + seconds, self._kill, batch, 0.5)
        else:
            self._at(self.now + seconds, self._member_done, batch, seconds)

    def _member_done(self, batch: Batch, seconds: float) -> None:
        if batch.closed:
            return
        speed = self.setting.speeds[batch.model]
        items = list(batch.tickets)
        self.busy_s += seconds
        self.wasted_s += seconds * sum(not ticket.waiting for ticket in items) / len(items)
        last = batch.members_done + 1 == speed.members
        if last:
            self.scheduler.batch_done(batch, seconds, self.now)
            leave, go = items, False
        else:
            step = self.scheduler.member_done(batch, seconds, self.now)
            leave, go = (step.leave if step.go else items), step.go
            self._tell("step", (batch, step))
        self._deliver(leave)
        if go:
            self._begin(batch)
        else:
            del self.running[batch.id]
        self._poll()

    def _deliver(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            request: Request = ticket.payload
            request.runs += 1
            job = self._jobs.get(request.key)
            if job is not None and job.ticket is ticket:
                self._answer(job, self._quality(ticket), ticket.members_done)
            else:  # answered by its fallback or abandoned: kept for a later attempt
                self._stored.setdefault(request.key, (self._quality(ticket), ticket.members_done))

    def _die(self, away_s: float) -> None:
        batch = next(iter(self.running.values()), None)
        if batch is not None:
            self._kill(batch, away_s)
        elif self.alive:
            self._lose_slot(away_s)
            self._poll()

    def _kill(self, batch: Batch, away_s: float) -> None:
        if batch.closed or batch.id not in self.running:
            return
        del self.running[batch.id]
        self._lose_slot(away_s)
        self._tell("death", batch)
        # As the gateway does: what is lost alone, and not for the first time, is not tried again.
        guilty = batch.tickets[0] if len(batch) == 1 and batch.tickets[0].losses else None
        self.scheduler.batch_lost(batch, self.now, guilty)
        if guilty is not None and guilty.waiting:
            self._give_fallback(guilty, "crashes_worker")
        self._poll()

    def _lose_slot(self, away_s: float) -> None:
        self.alive -= 1
        self.scheduler.set_slots(self.alive)
        self._at(self.now + away_s, self._revive)

    def _revive(self) -> None:
        self.alive += 1
        self.scheduler.set_slots(self.alive)
        self._poll()


def judged(simulation: Simulation) -> Iterator[Request]:
    """The requests that count."""
    setting = simulation.setting
    return (r for r in simulation.requests if setting.judge_from <= r.arrived < setting.judge_until)
