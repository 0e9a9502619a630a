"""Models that change: new code after a reload, other hardware, another curve. What was learned is a guess then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.scheduler.worlds import ticket

from timebound.scheduler import Batch, ModelSpec, Scheduler

Cost = Callable[[int], float]
SPEC = ModelSpec("model", 10.0)


def per_item(batch: int) -> float:
    return 0.010 * batch


def per_batch(batch: int) -> float:
    return 0.100


class Server:
    """One slot that takes as long as `cost` says, and a clock."""

    def __init__(self, spec: ModelSpec = SPEC, profile: dict[str, object] | None = None) -> None:
        self.scheduler = Scheduler(0.010)
        self.scheduler.add_model(spec, profile)
        self.scheduler.guess(spec.name, 0.01)
        self.scheduler.set_slots(1)
        self.spec = spec
        self.now = 0.0
        self.seq = 0
        self.refused = 0
        self.surprises = 0
        self.sizes: list[int] = []

    def ask(self, cost: Cost, count: int, deadline_s: float | None = None) -> float:
        """So many at once; the seconds until all are done or given up."""
        began = self.now
        for _ in range(count):
            self.seq += 1
            due = began + (deadline_s or self.spec.deadline_s)
            self.refused += self.scheduler.offer(ticket(self.seq, due, arrived=began), began) is not None
        while (batch := self.scheduler.take(self.now)) is not None:
            seconds = cost(len(batch))
            self.surprises += not 0.4 < batch.predicted_s / seconds < 2.5
            self.now += seconds
            self.sizes.append(len(batch))
            self.scheduler.batch_done(batch, seconds, self.now)
        self.refused += len(self.scheduler.set_aside())
        return self.now - began


def learned(cost: Cost, spec: ModelSpec = SPEC) -> Server:
    server = Server(spec)
    for count in [1, 2, 4, 8, 16, 32, 64, 100, 1, 3, 5] * 6:
        server.ask(cost, count)
    server.sizes.clear()
    return server


@pytest.mark.parametrize("deadline_s", [2.0, 10.0, 30.0])
def test_a_curve_of_another_shape_is_found_within_two_rounds(deadline_s: float) -> None:
    server = learned(per_item, replace(SPEC, deadline_s=deadline_s))
    rounds = [server.ask(per_batch, 100) for _ in range(8)]
    assert max(rounds[2:]) <= 1.5


@pytest.mark.parametrize("deadline_s", [2.0, 10.0, 30.0])
def test_a_profile_from_other_hardware_is_overruled_within_two_rounds(deadline_s: float) -> None:
    spec = replace(SPEC, deadline_s=deadline_s)
    profile = learned(per_item, spec).scheduler.profile()["model"]
    server = Server(spec, profile)
    rounds = [server.ask(per_batch, 100) for _ in range(8)]
    assert max(rounds[2:]) <= 1.5


@pytest.mark.parametrize("deadline_s", [1.0, 10.0])
def test_new_code_that_is_faster_is_believed_after_its_first_batches(deadline_s: float) -> None:
    def slow(batch: int) -> float:
        return 0.9 * batch

    spec = replace(SPEC, deadline_s=deadline_s)
    server = learned(slow, spec)
    server.refused = 0
    server.scheduler.add_model(spec)
    for _ in range(3):
        server.ask(per_batch, 10)
    server.refused = 0
    rounds = [server.ask(per_batch, 100, deadline_s=2.0) for _ in range(6)]
    assert max(rounds) <= 1.5
    assert server.refused == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_it_costs_now_is_predicted_after_a_few_rounds(seed: int) -> None:
    chance = Random(seed)
    before, after = ((chance.uniform(0.001, 0.1), chance.choice([0.0, chance.uniform(0.0, 0.02)])) for _ in range(2))

    def new(batch: int) -> float:
        return after[0] + after[1] * batch

    server = learned(lambda batch: before[0] + before[1] * batch)
    if seed % 2:
        server.scheduler.add_model(SPEC)  # told that the code is new
    for _ in range(30):  # every size that it chooses now was tried by then
        server.ask(new, 60)
    server.surprises = 0
    for _ in range(10):
        server.ask(new, 60)
    assert server.surprises <= 2


def test_a_batch_of_the_old_code_that_ends_after_a_reload_says_nothing_of_the_new() -> None:
    server = learned(per_item)
    scheduler = server.scheduler
    for seq in range(8):
        scheduler.offer(ticket(10_000 + seq, server.now + 10.0, arrived=server.now), server.now)
    batch = scheduler.take(server.now)
    assert batch is not None
    scheduler.add_model(SPEC)
    known = scheduler.profile()
    scheduler.batch_done(batch, 5.0, server.now + 5.0)
    assert scheduler.profile() == known


def test_first_times_that_were_quick_elsewhere_are_not_waited_for_in_vain() -> None:
    scheduler = Scheduler(0.010)
    scheduler.add_model(ModelSpec("model", 1.0))
    scheduler.guess("model", 0.01)
    scheduler.set_slots(1)

    def first(number: int) -> Batch:
        for seq in (2 * number, 2 * number + 1):
            scheduler.offer(ticket(seq, 10.0 * number + 1.0, arrived=10.0 * number), 10.0 * number)
        batch = scheduler.take(10.0 * number)
        assert batch is not None
        batch.is_first = True
        return batch

    limits = []
    for number in range(6):
        batch = first(number)
        limits.append(scheduler.hang_limit_s(batch))
        scheduler.batch_done(batch, 0.02, 10.0 * number + 0.02)
    assert limits[0] == limits[3] == 10.0, "it may load or compile something"
    assert limits[5] == 1.0, "but does not, as its like in other workers have shown"
    batch = first(6)
    scheduler.batch_lost(batch, 61.5)
    assert scheduler.hang_limit_s(first(7)) > 2.5, "unless one of them did take long"
