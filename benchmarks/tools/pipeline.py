"""A closed loop through gateway, preparing processes, one device and back, simulated around the real scheduler.

Clients ask again as soon as they are answered. The gateway is one core, and so is what finishes batches; rows are
prepared by `hands` processes, which share one queue. The device runs one batch after another and has `slots` in flight.
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
    noise: float = 0.02
    gateway_in_s: float = 60e-6
    gateway_out_s: float = 50e-6
    prepare_s: float = 0.30e-3
    finish_s: float = 25e-6
    hop_s: float = 0.4e-3
    deadline_s: float = 1.0
    seed: int = 1


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


class Loop:
    """One run of so many clients."""

    def __init__(self, pipeline: Pipeline, clients: int, until: float = 6.0, since: float = 2.0) -> None:
        self._pipeline, self._until, self._since = pipeline, until, since
        self._rng = random.Random(pipeline.seed)
        self._now = self._gateway = self._crew = self._device = self._finisher = 0.0
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
        steps = (tuple(pipeline.device_s(size) for size in ladder),)
        self._scheduler = Scheduler(0.010)
        spec = ModelSpec("model", pipeline.deadline_s, max_batch=ladder[-1], batch_sizes=ladder, step_s=steps)
        self._scheduler.add_model(spec)
        self._scheduler.set_slots(pipeline.slots, 1 if pipeline.is_just_in_time else None)
        for number in range(clients):
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
            self._off, self._unanswered,
        )  # fmt: skip

    def _at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), action, arguments))

    def _through_gateway(self, cost_s: float) -> float:
        self._gateway = max(self._gateway, self._now) + cost_s * self._rng.lognormvariate(0.0, 0.4)
        return self._gateway

    def _send(self) -> None:
        self._at(self._through_gateway(self._pipeline.gateway_in_s), self._arrive, self._now)

    def _arrive(self, sent: float) -> None:
        number = next(self._numbers)
        self._sent[number] = sent
        ticket = Ticket(number, "model", sent + self._pipeline.deadline_s, self._now)
        if self._scheduler.offer(ticket, self._now) is not None:
            self._miss(ticket)
        self._decide()

    def _miss(self, ticket: Ticket) -> None:
        self._unanswered += 1
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
        ready = self._crew + pipeline.hop_s
        begin = max(ready, self._device)
        step = next(size for size in pipeline.ladder if size >= items)
        seconds = pipeline.device_s(step) * self._rng.lognormvariate(0.0, pipeline.noise)
        self._device = begin + seconds
        if begin > self._since:
            self._busy_s += min(seconds, max(0.0, self._until - begin))
            self._sizes.append(items)
        self._at(self._device, self._computed, batch, seconds, begin - ready)

    def _computed(self, batch: Batch, seconds: float, waited_s: float) -> None:
        finish_s = len(batch) * self._pipeline.finish_s
        self._finisher = max(self._finisher, self._now) + finish_s
        batch.took = Took(seconds, waited_s, finish_s) if self._pipeline.is_just_in_time else None
        self._at(self._finisher + self._pipeline.hop_s, self._finished, batch)

    def _finished(self, batch: Batch) -> None:
        self._free += 1
        if self._now > self._since:
            self._off.append(self._now - batch.started - batch.predicted_s)
        tickets = list(batch.tickets)
        self._scheduler.batch_done(batch, self._now - batch.started, self._now)
        for ticket in tickets:
            self._answer(ticket)
        self._decide()

    def _answer(self, ticket: Ticket, *, is_late: bool = False) -> None:
        self._scheduler.withdraw(ticket)
        self._at(self._through_gateway(self._pipeline.gateway_out_s), self._answered, ticket, is_late)

    def _answered(self, ticket: Ticket, is_late: bool) -> None:
        sent = self._sent.pop(ticket.seq)
        if self._now > self._since and not is_late:
            self._waits.append(self._now - sent)
        self._at(self._now + 1e-4, self._send)


def ceiling(pipeline: Pipeline) -> float:
    """Items per second of a device that is never idle and never padded."""
    return max(size / pipeline.device_s(size) for size in pipeline.ladder)
