"""A device that several slots share: one server, which runs their batches one after another.

A second batch is bound to it while the first one runs, as late as it may be: when what it needs besides the device
(to be sent, prepared, copied) takes as long as the device still has to do. A plain request on a CPU enters nothing of
this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from timebound.scheduler.lead import Lead
from timebound.scheduler.served import InFlight, Served
from timebound.scheduler.staircase import at_once_s, heard_at_once
from timebound.scheduler.ticket import Batch, Server

TIMER_S = 0.001  # so early a batch is bound: the timers of an event loop are as coarse


class Turn(NamedTuple):
    """When a batch given to a device now would be done but for its own time there, and since when it may be given."""

    start: float
    due: float


class Devices(InFlight):
    """The batches that run, where servers are devices with more than one batch in flight."""

    def __init__(self, running: InFlight) -> None:
        super().__init__()
        vars(self).update(vars(running))
        self._lines: dict[Server, list[Batch]] = {}  # by device, in their order; none is empty
        self._ended: dict[Server, float] = {}  # when it was last seen to have ended something
        self._before: defaultdict[str, Lead] = defaultdict(Lead)  # by model
        self._after: defaultdict[str, Lead] = defaultdict(Lead)

    @property
    def busy(self) -> int:
        return len(self) - sum(map(len, self._lines.values())) + len(self._lines)

    def residuals(self, now: float, without: Batch | None = None, besides: Server | None = None) -> list[float]:
        """Predicted seconds left of each busy server, but for one device or the one that a batch runs on."""
        if without is not None and without.server is not None:
            besides = without.server
        slots = [each for each in self._batches.values() if each.server is None and each is not without]
        left = [max(0.0, batch.stage_end - now) for batch in slots]
        return left + [self.free_at(server, now) - now for server in self._lines if server != besides]

    def free_at(self, server: Server, now: float) -> float:
        """When this device is expected to be done with what it has; now if it has nothing."""
        at = self._ended.get(server, now)
        for batch in self._lines.get(server, ()):
            at = max(at, batch.ready) + batch.stage_s
        return max(at, now)

    def turn(self, server: Server, now: float, models: Iterable[Served]) -> Turn:
        """The turn of the batch that this device gets next, of what waits now."""
        before_s = after_s = 0.0
        is_known = True
        for served in models:
            if served.queued:
                name, items = served.spec.name, min(served.queued, served.estimate.max_batch)
                before_s = max(before_s, self._before[name].seconds(items))
                after_s = max(after_s, self._after[name].seconds(items))
                is_known &= self._before[name].is_known
        free_at = self.free_at(server, now)
        due = free_at - before_s - TIMER_S if is_known and server in self._lines else -inf
        return Turn(max(now + before_s, free_at) + after_s, due)

    def apart_s(self, model: str, items: int) -> float:
        """What a batch of so many items takes before the device has it and after it."""
        return self._before[model].seconds(items) + self._after[model].seconds(items)

    def bind(self, batch: Batch, server: Server, now: float, fits: Callable[[Batch, int, float, float], bool]) -> None:
        """This batch, which has just begun, is in flight on a device.

        It runs as many members as everybody who waits can have, without a word in between, and then asks; small batches
        run all at once.
        """
        served: Served = batch.served
        batch.server = server
        name, items, whole_s = batch.model, len(batch), batch.predicted_s
        ready, after_s = now + self._before[name].seconds(items), self._after[name].seconds(items)
        begin = max(self.free_at(server, now), ready)
        once_s, safe, others_s = at_once_s(served.estimate, items), served.estimate.safe, self._others_s(server)
        levels = [served.estimate.predict(items, batch.size, member) for member in range(served.spec.members)]
        for level in range(len(levels), 0, -1):
            is_at_once = level == len(levels) > 1 and once_s <= whole_s
            batch.stage_s, batch.sure = once_s if is_at_once else sum(levels[:level]), level
            end = begin + safe * batch.stage_s + after_s
            if level == 1 or (end <= batch.latest_end and fits(batch, level, batch.stage_s + others_s, now)):
                batch.is_at_once, batch.quiet_s = is_at_once, end - now
                break
        whole_s = once_s if batch.is_at_once else whole_s
        batch.ready = ready
        self._ended.setdefault(server, now)
        self._lines.setdefault(server, []).append(batch)
        batch.stage_end = begin + batch.stage_s + after_s
        batch.predicted_s = begin + whole_s + after_s - now

    def _others_s(self, server: Server, batch: Batch | None = None) -> float:
        return sum(each.stage_s for each in self._lines.get(server, ()) if each is not batch)

    def company_s(self, batch: Batch) -> float:
        return self._others_s(batch.server, batch)

    def next_stage(self, batch: Batch, now: float, predicted_s: float) -> None:
        super().next_stage(batch, now, predicted_s)
        batch.ready, batch.stage_s = now, predicted_s

    def learn(self, batch: Batch, seconds: float, now: float, members: int) -> None:
        server, took, ended = batch.server, batch.took, now
        if server is None:
            super().learn(batch, seconds, now, members)
            return
        if took is not None:
            self._learn_lead(batch, seconds)
            seconds, ended = took.device_s, now - took.finish_s
            batch.used_s += seconds
        else:  # the wall's time, but for what another batch had of it
            seconds = max(1e-6, min(seconds, now - self._ended[server]))
        self._ended[server] = max(self._ended[server], ended)
        spec, items = batch.served.spec, len(batch) if batch.inferred is None else batch.inferred
        if batch.is_at_once and items and batch.members_done == 0 and members == spec.members:
            heard_at_once(batch.estimate, items, seconds)
        super().learn(batch, seconds, now, members)

    def _learn_lead(self, batch: Batch, seconds: float) -> None:
        """`seconds` since its start; of a batch that reports once, for others are asked in between."""
        took = batch.took
        if took is not None and batch.members_done == 0 and batch.inferred != 0:
            items = len(batch) if batch.inferred is None else batch.inferred
            apart_s = seconds - took.device_s - took.waited_s - took.finish_s
            self._before[batch.model].observe(items, max(0.0, apart_s))
            self._after[batch.model].observe(items, took.finish_s)

    def close(self, batch: Batch, now: float) -> None:
        super().close(batch, now)
        if batch.server is not None:
            line = self._lines[batch.server]
            line.remove(batch)
            if not line:
                del self._lines[batch.server], self._ended[batch.server]
