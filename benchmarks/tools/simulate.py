"""The lab's server in simulated time with all that can go wrong: clients that re-send, workers that die, onlookers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.tools.arrivals import Arrival, Users, one_size
from benchmarks.tools.machine import Speed
from benchmarks.tools.simulated import Report, Request, summarise
from timebound.lab import simulate
from timebound.scheduler import Batch, ModelSpec, Phase, Policy, Scheduler, Ticket

Probe = Callable[["Simulation", str, Any], None]


@dataclass(frozen=True, slots=True)
class Setting(simulate.Setting):
    """The simulated world. Seconds everywhere."""

    speeds: Mapping[str, Speed]
    until: float = 40.0
    judge_from: float = 6.0
    deadlines: dict[str, float] = field(default_factory=dict)  # for models that differ
    retries: int = 2  # a client that got no answer in time sends again at once, so often
    hedge_after: float = 0.0  # of its deadline: then a client sends again without giving up the first attempt; 0: never
    pause_after_refusal_s: float = 0.1
    can_fallback: bool = True
    has_guard: bool = True
    warm_up: bool = False  # run the start-up ladder before the first request
    deaths: Sequence[tuple[float, float]] = ()  # (when, away for): the slot of the oldest batch dies
    slowdowns: Sequence[tuple[float, float]] = ()  # (from, factor)
    killers: frozenset[int] = frozenset()  # keys of requests that kill their worker
    size: Callable[[Random], float] = one_size

    @property
    def judge_until(self) -> float:
        """Later arrivals are served in a world where the load has ended."""
        return self.until - 3.2 * self.deadline_s


class Job(Ticket, kw_only=True):
    """A request in the gateway: a ticket that knows whom to tell."""

    request: Request
    guard_at: float = 0.0


class Simulation(simulate.Simulation):
    """One run. `probe(simulation, event, thing)` sees every decision."""

    setting: Setting

    def __init__(
        self,
        setting: Setting,
        arrivals: Iterable[Arrival] = (),
        users: Sequence[Users] = (),
        *,
        probe: Probe | None = None,
        scheduler: Scheduler | None = None,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(setting, arrivals, scheduler or Scheduler(setting.margin_s, policy=policy))
        self.requests: list[Request] = []
        self.batch_sizes: list[int] = []
        self.reasons: Counter[str] = Counter()
        self.alive = setting.slots
        self.wasted_s = self.busy_s = 0.0
        self.hedged = 0  # attempts that joined one that waited
        self._probe = probe
        self._open: dict[int, Job] = {}
        self._stored: dict[int, tuple[str, int]] = {}
        self._seq = 0
        self._on_answer: dict[int, Callable[[], None]] = {}
        self._prepare(users)

    def run(self) -> Report:
        """To the end; every request has had its answer or given up by then."""
        self.play()
        setting = self.setting
        return summarise(self.requests, self.batch_sizes, self.reasons, setting.judge_from, setting.judge_until)

    def deadline_of(self, model: str) -> float:
        return self.setting.deadlines.get(model, self.setting.deadline_s)

    def _prepare(self, users: Sequence[Users]) -> None:
        setting = self.setting
        for name, speed in setting.speeds.items():
            deadline_s = self.deadline_of(name)
            spec = ModelSpec(name, deadline_s, speed.members, speed.max_batch, batch_sizes=speed.batch_sizes)
            self.scheduler.add_model(spec)
            if setting.warm_up:
                self._climb(name, speed, deadline_s)
        for when, away_s in setting.deaths:
            self._at(when, self._die, away_s)
        for group in users:
            for _ in range(group.count):
                self._at(self.rng.uniform(0.0, group.think_s[1]), self._ask, group)

    def _climb(self, name: str, speed: Speed, deadline_s: float) -> None:
        """The start-up ladder: 1, 1, 2, 4, ... until a batch takes a sixth of the deadline."""
        batch, seconds = 1, 0.0
        while batch <= speed.max_batch and seconds <= deadline_s / 6:
            for member in range(speed.members):
                seconds = speed.draw(self.rng, batch, 1.0, member, 1)
                self.scheduler.observe(name, batch, 1.0, seconds, member)
            batch *= 2

    def _tell(self, event: str, thing: Any) -> None:
        if self._probe:
            self._probe(self, event, thing)

    # ------------------------------------------------------------------ clients

    def _arrive(self, arrival: simulate.Arrival) -> None:
        assert isinstance(arrival, Arrival)
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
        if self.setting.hedge_after:
            self._at(self.now + self.setting.hedge_after * request.deadline_s, self._hedge, request, request.attempts)
        self._receive(request, priority)

    def _hedge(self, request: Request, attempt: int) -> None:
        """A second attempt while the first one waits: it joins it, and the earlier deadline holds."""
        job = self._open.get(request.key)
        if job is not None and not request.done and request.attempts == attempt:
            self.hedged += 1
            self.scheduler.renew(job, job.deadline, is_retry=job.is_retry)
            self._poll()

    def _give_up(self, request: Request, attempt: int, priority: int) -> None:
        """The client's own timer: it closes the connection, and perhaps sends again."""
        if request.done or request.attempts != attempt:
            return
        again = attempt <= self.setting.retries
        job = self._open.get(request.key)
        if job is not None:
            self.scheduler.abandon(job, keep=again)
            if not again and job.phase is Phase.ACCEPTED:
                del self._open[request.key]
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
        job, verdict = self._open.get(request.key), None
        if job is None:
            self._seq += 1
            job = self._open[request.key] = Job(
                self._seq, request.model, deadline, self.now, request.size, priority, request.attempts > 1,
                request=request,
            )  # fmt: skip
            verdict = self.scheduler.offer(job, self.now)
        else:
            self.scheduler.renew(job, deadline, is_retry=True)
        job.guard_at = deadline - self.setting.margin_s
        if self.setting.has_guard:
            self._at(job.guard_at, self._guard, job, job.guard_at)
        if verdict is not None:
            self._tell("verdict", (job, verdict))
            self.reasons[verdict.reason] += 1
            self._no_model_answer(job)
        self._poll()

    def _guard(self, job: Job, guard_at: float) -> None:
        """The deadline is near: the best there is goes out."""
        if self._open.get(job.request.key) is not job or job.guard_at != guard_at:
            return
        self._tell("guard", job)
        if job.members_done:
            self._answer(job)
        else:
            self._no_model_answer(job)

    def _no_model_answer(self, job: Job) -> None:
        """Fallback, or a refusal after which the client waits a moment and sends again."""
        self.scheduler.withdraw(job)
        if self.setting.can_fallback:
            self._answer(job)
            return
        self._open.pop(job.request.key, None)
        self._at(self.now + self.setting.pause_after_refusal_s, self._after_refusal, job.request, job.request.attempts)

    def _after_refusal(self, request: Request, attempt: int) -> None:
        if not request.done and request.attempts == attempt:
            self._give_up(request, attempt, 0)

    def _quality(self, ticket: Ticket) -> str:
        if not ticket.members_done:
            return "fallback"
        return "full" if ticket.members_done == self.setting.speeds[ticket.model].members else "partial"

    def _answer(self, ticket: Ticket) -> None:
        """Exactly once per job."""
        assert isinstance(ticket, Job)
        key = ticket.request.key
        if self._open.pop(key, None) is not ticket:
            return
        self.scheduler.withdraw(ticket)
        found = (self._quality(ticket), ticket.members_done)
        if ticket.members_done:
            self._stored[key] = found
        self._answer_request(ticket.request, *found)

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
        assert isinstance(ticket, Job)
        if self._open.get(ticket.request.key) is not ticket:
            return
        if ticket.members_done:
            self._answer(ticket)
        elif self.setting.can_fallback:
            self._no_model_answer(ticket)
        else:
            del self._open[ticket.request.key]  # the client's own timer runs; its retry is a new ticket

    def _begin(self, batch: Batch) -> None:
        speed = self.setting.speeds[batch.model]
        busy = len(self.running)
        seconds = speed.draw(self.rng, len(batch), batch.size, batch.members_done, busy)
        for since, factor in self.setting.slowdowns:
            if self.now >= since:
                seconds *= factor
        if any(isinstance(ticket, Job) and ticket.request.key in self.setting.killers for ticket in batch.tickets):
            self._at(self.now + seconds, self._kill, batch, 0.5)
        else:
            self._at(self.now + seconds, self._member_done, batch, seconds)

    def _member_done(self, batch: Batch, seconds: float) -> None:
        if batch.closed:
            return
        speed = self.setting.speeds[batch.model]
        items = list(batch.tickets)
        self.busy_s += seconds
        self.wasted_s += seconds * sum(not ticket.is_wanted for ticket in items) / len(items)
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
            assert isinstance(ticket, Job)
            request = ticket.request
            request.runs += 1
            if self._open.get(request.key) is ticket:
                self._answer(ticket)
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
        if guilty is not None and guilty.is_wanted:
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
