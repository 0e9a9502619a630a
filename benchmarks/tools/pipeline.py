"""A closed loop through gateway, preparing processes, one device and back, simulated around the real scheduler.

Clients ask again as soon as they are answered, or come at a rate. The gateway is one core, and so is what finishes
batches; rows are prepared by `hands` processes, which share one queue. The device runs one batch after another, member
by member, and has `slots` in flight.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from statistics import median
from typing import Any

from timebound.scheduler import Batch, ModelSpec, Scheduler, Ticket
from timebound.scheduler.ticket import Took

FINE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
DEVICE = "device"
SINCE_S, JUDGED_S = 2.0, 4.0
"""A run is judged from then on, for so long."""
AHEAD = 2
"""Stages of a batch that the lane is given before the first has ended."""
TOGETHER = (1, 2, 4, 8, 16)


def graph_s(batch: int) -> float:
    """Five EfficientNet-B0 as CUDA graphs on an H200, measured: 5.4 ms for one item, 30.6 ms for 128."""
    return (5.2 + 0.1985 * batch) * 1e-3


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the stages cost. Seconds."""

    ladder: Sequence[int] = FINE
    hands: int = 4
    slots: int = 2
    is_just_in_time: bool = True
    """Else slots are taken for servers, as on a CPU, and each is given a batch as soon as it is free."""
    device_s: Callable[[int], float] = graph_s
    members: int = 1
    together: float = 0.3
    """What all members at once take, against one after another."""
    noise: float = 0.02
    gateway_in_s: float = 60e-6
    gateway_out_s: float = 50e-6
    prepare_s: float = 0.30e-3
    finish_s: float = 25e-6
    hop_s: float = 0.4e-3
    deadline_s: float = 1.0
    timeout_s: float = 0.0
    """What requests bring of their own, if it is less."""
    seed: int = 1


@dataclass(slots=True, eq=False)
class Sent:
    """A batch on its way."""

    batch: Batch
    device_s: float
    items: int
    predicted_s: float
    submitted: int = 0
    done: int = 0
    used_s: float = 0.0
    asked: float = 0.0
    reported_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a run, without its beginning."""

    rate: float
    p50_s: float
    busy: float
    """Share of the time that the device was at work."""
    mean_batch: float
    off_s: list[float]
    """By batch: how much later it ended than was predicted when it began."""
    unanswered: int
    members: float
    """Mean of an answer."""


class Loop:
    """One run of so many clients, or at a rate."""

    def __init__(self, pipeline: Pipeline, clients: int = 0, *, rate: float = 0.0) -> None:
        self._pipeline, self._until, self._since = pipeline, SINCE_S + JUDGED_S, SINCE_S
        self._rng = random.Random(pipeline.seed)
        self._now = self._gateway = self._crew = self._finisher = 0.0
        self._lane: list[tuple[int, int, Sent]] = []
        self._is_computing = False
        self._levels: list[int] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order, self._numbers = count(), count()
        self._timer = inf
        self._free = pipeline.slots
        self._sent: dict[int, float] = {}
        self._waits: list[float] = []
        self._sizes: list[int] = []
        self._off: list[float] = []
        self._busy_s = 0.0
        self._unanswered = 0
        ladder = tuple(pipeline.ladder)
        steps = tuple(pipeline.device_s(size) / pipeline.members for size in ladder)
        at_once = [pipeline.together * pipeline.device_s(size) for size in ladder if size in TOGETHER]
        self._scheduler = Scheduler(0.010)
        spec = ModelSpec(
            "model", pipeline.deadline_s, pipeline.members, ladder[-1], batch_sizes=ladder,
            step_s=(steps,) * pipeline.members, together_s=tuple(at_once) if pipeline.members > 1 else (),
        )  # fmt: skip
        self._scheduler.add_model(spec)
        self._scheduler.set_slots(pipeline.slots, 1 if pipeline.is_just_in_time else None)
        self._rate = rate
        for number in range(clients if not rate else 1):
            self._at(number * 1e-5, self._send)

    def run(self) -> Seen:
        """To the end."""
        while self._events:
            at, _, action, arguments = heapq.heappop(self._events)
            if at > self._until:
                break
            self._now = at
            action(*arguments)
        span = self._until - self._since
        return Seen(
            len(self._waits) / span, median(self._waits), self._busy_s / span, sum(self._sizes) / len(self._sizes),
            self._off, self._unanswered, sum(self._levels) / len(self._levels),
        )  # fmt: skip

    def learned(self) -> dict[str, Any]:
        """What the scheduler would save."""
        found: dict[str, Any] = self._scheduler.profile()["model"]
        return found

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), action, arguments))

    def _through_gateway(self, cost_s: float) -> float:
        self._gateway = max(self._gateway, self._now) + cost_s * self._rng.lognormvariate(0.0, 0.4)
        return self._gateway

    def _send(self) -> None:
        self._at(self._through_gateway(self._pipeline.gateway_in_s), self._arrive, self._now)
        if self._rate:
            self._at(self._now + self._rng.expovariate(self._rate), self._send)

    def _arrive(self, sent: float) -> None:
        number = next(self._numbers)
        self._sent[number] = sent
        limit_s = self._pipeline.timeout_s or self._pipeline.deadline_s
        ticket = Ticket(number, "model", sent + limit_s, self._now)
        self._at(ticket.deadline - 0.010, self._guard, ticket)
        if self._scheduler.offer(ticket, self._now) is not None:
            self._miss(ticket)
        self._decide()

    def _guard(self, ticket: Ticket) -> None:
        """Its time is up: it gets the members that are done."""
        if ticket.seq in self._sent:
            self._answer(ticket) if ticket.members_done else self._miss(ticket)

    def _miss(self, ticket: Ticket) -> None:
        self._unanswered += self._now > self._since
        self._answer(ticket, is_late=True)

    def _decide(self) -> None:
        server = DEVICE if self._pipeline.is_just_in_time else None
        while self._free and (batch := self._scheduler.take(self._now, server)) is not None:
            self._begin(batch)
        for aside in self._scheduler.set_aside():
            self._miss(aside.ticket)
        due = self._scheduler.due
        if due < self._timer:
            self._timer = due
            self._at(due, self._ring, due)

    def _ring(self, due: float) -> None:
        if due == self._timer:
            self._timer = inf
            self._decide()

    def _begin(self, batch: Batch) -> None:
        pipeline, items = self._pipeline, len(batch)
        self._free -= 1
        self._crew = max(self._now, self._crew) + items * pipeline.prepare_s / pipeline.hands
        step = next(size for size in pipeline.ladder if size >= items)
        if self._now > self._since:
            self._sizes.append(items)
        self._at(
            self._crew + pipeline.hop_s, self._ready, Sent(batch, pipeline.device_s(step), items, batch.predicted_s)
        )

    def _ready(self, sent: Sent) -> None:
        """Its rows are there: the first stages go to the lane."""
        sent.asked = self._now
        sure = sent.batch.sure if self._pipeline.is_just_in_time else self._pipeline.members
        self._submit_up_to(sent, 1 if sent.batch.is_at_once else min(AHEAD, sure))

    def _submit_up_to(self, sent: Sent, stages: int) -> None:
        while sent.submitted < min(stages, self._pipeline.members):
            sent.submitted += 1
            heapq.heappush(self._lane, (sent.batch.id, next(self._order), sent))
        self._next_stage()

    def _next_stage(self) -> None:
        """The oldest batch's stage, if the device is free."""
        if self._is_computing or not self._lane:
            return
        self._is_computing = True
        _, _, sent = heapq.heappop(self._lane)
        pipeline = self._pipeline
        share = pipeline.together if sent.batch.is_at_once else 1.0 / pipeline.members
        seconds = share * sent.device_s * self._rng.lognormvariate(0.0, pipeline.noise)
        if self._now > self._since:
            self._busy_s += min(seconds, max(0.0, self._until - self._now))
        self._at(self._now + seconds, self._computed, sent, seconds)

    def _computed(self, sent: Sent, seconds: float) -> None:
        self._is_computing = False
        pipeline, batch = self._pipeline, sent.batch
        sent.used_s += seconds
        sent.done = pipeline.members if batch.is_at_once else sent.done + 1
        sure = batch.sure if pipeline.is_just_in_time else pipeline.members
        if sent.done < min(sure, pipeline.members):
            self._submit_up_to(sent, min(sent.done + AHEAD, max(sure, sent.done + 1)))
            return
        finish_s = sent.items * pipeline.finish_s
        self._finisher = max(self._finisher, self._now) + finish_s
        waited_s = max(0.0, self._now - sent.asked - sent.used_s)
        took = Took(sent.used_s, waited_s, finish_s) if pipeline.is_just_in_time else None
        self._at(self._finisher + pipeline.hop_s, self._reported, sent, took)
        self._next_stage()

    def _reported(self, sent: Sent, took: Took | None) -> None:
        batch = sent.batch
        batch.took, seconds, sent.reported_at = took, self._now - (sent.reported_at or batch.started), self._now
        everybody = list(batch.tickets)
        if sent.done == self._pipeline.members:
            if self._now > self._since:
                self._off.append(self._now - batch.started - sent.predicted_s)
            self._scheduler.batch_done(batch, seconds, self._now)
            leaving, goes_on = everybody, False
        else:
            step = self._scheduler.member_done(batch, seconds, self._now, sent.done)
            leaving, goes_on = (step.leave if step.go else everybody), step.go
        for ticket in leaving:
            self._answer(ticket)
        if goes_on:
            sent.used_s, sent.asked = 0.0, self._now
            self._at(self._now + self._pipeline.hop_s, self._submit_up_to, sent, sent.done + 1)
        else:
            self._free += 1
        self._decide()

    def _answer(self, ticket: Ticket, *, is_late: bool = False) -> None:
        self._scheduler.withdraw(ticket)
        if (sent := self._sent.pop(ticket.seq, None)) is None:
            return
        if self._now > self._since and not is_late:
            self._levels.append(ticket.members_done)
        self._at(self._through_gateway(self._pipeline.gateway_out_s), self._answered, sent, is_late)

    def _answered(self, sent: float, is_late: bool) -> None:
        if self._now > self._since and not is_late:
            self._waits.append(self._now - sent)
        if not self._rate:
            self._at(self._now + 1e-4, self._send)


def ceiling(pipeline: Pipeline) -> float:
    """Items per second of a device that is never idle and never padded."""
    return max(size / pipeline.device_s(size) for size in pipeline.ladder)
