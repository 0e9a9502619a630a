"""How long batches really take on the simulated machine, and what the best possible rate is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Speed:
    """True time of a batch through all members: (overhead + per_item * batch * padded size) times noise."""

    overhead_s: float
    per_item_s: float
    members: int = 1
    max_batch: int = 64
    noise: float = 0.05  # sigma of a lognormal factor, per member
    straggler_share: float = 0.005
    straggler_factor: float = 3.0
    crowding: float = 0.0  # how much slower with each other busy slot: 0.3 = 30 %
    batch_power: float = 1.0  # above 1 a larger batch costs more per item, as for some text models
    member_weights: tuple[float, ...] = ()  # relative cost of the members; empty = equal
    batch_sizes: tuple[int, ...] = ()  # a batch is padded up to the next of these; empty = not at all

    def mean(self, batch: int, size: float = 1.0) -> float:
        """Through all members, without noise and company."""
        batch = next((each for each in self.batch_sizes if each >= batch), batch)
        return self.overhead_s + self.per_item_s * float(batch**self.batch_power) * size

    def member_share(self, member: int) -> float:
        if not self.member_weights:
            return 1.0 / self.members
        return self.member_weights[member] / sum(self.member_weights)

    def draw(self, rng: random.Random, batch: int, size: float, member: int, busy: int) -> float:
        """One member, this time."""
        seconds = self.mean(batch, size) * self.member_share(member) * (1.0 + self.crowding * (busy - 1))
        if self.noise:
            seconds *= rng.lognormvariate(0.0, self.noise)
        if self.straggler_share and rng.random() < self.straggler_share:
            seconds *= self.straggler_factor
        return seconds

    def capacity(self, slots: int, deadline_s: float, size: float = 1.0) -> float:
        """The largest rate at full quality: every batch of the best size that fits into the deadline."""
        best = 0.0
        for batch in range(1, self.max_batch + 1):
            seconds = self.mean(batch, size) * (1.0 + self.crowding * (slots - 1))
            if seconds > deadline_s and batch > 1:
                break
            best = max(best, batch / seconds)
        return slots * best


CPU_LIKE = Speed(0.005, 0.020)
GPU_LIKE = Speed(0.080, 0.0025)


def clairvoyant_share(
    arrivals: list[float], deadline_s: float, rate: float, since: float = 0.0, until: float = inf
) -> float:
    """An upper bound on the share of requests that any scheduler answers in time.

    One pooled server that works at `rate` without batches, noise or delay, serves in order of arrival and knows at
    once whom it cannot serve in time. With equal deadlines no order serves more.
    """
    free_at, served, total = 0.0, 0, 0
    for arrived in arrivals:
        end = max(free_at, arrived) + 1.0 / rate
        in_time = end <= arrived + deadline_s
        if in_time:
            free_at = end
        if since <= arrived < until:
            total += 1
            served += in_time
    return served / max(1, total)
