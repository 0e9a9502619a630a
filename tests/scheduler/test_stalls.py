"""A machine that stood still for a moment holds up all that run; who comes afterwards is not refused for it."""

from __future__ import annotations

import heapq
import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebound.scheduler import ModelSpec, Scheduler, Ticket
from timebound.scheduler.estimate import Estimate

DEADLINE_S = 0.4
STALLED_AT, UNTIL = 5.0, 10.0


def usual_s(batch: int) -> float:
    return 0.02 + 0.004 * batch


class Refused(NamedTuple):
    """How many were refused who came after the stall, and how long afterwards the last of them."""

    many: int
    last_s: float


def stalled(seed: int, rate: float, slots: int, stall_s: float) -> Refused:
    """Some seconds of Poisson arrivals; once gateway and workers stand still together."""
    rng, scheduler = random.Random(seed), Scheduler(0.01)
    scheduler.add_model(ModelSpec("model", deadline_s=DEADLINE_S, max_batch=64))
    scheduler.set_slots(slots)
    moves: list[tuple[float, int, Any]] = []
    at, number, refused, goes_on = 0.0, 0, [], STALLED_AT + stall_s
    while at < UNTIL:
        at += rng.expovariate(rate)
        number += 1
        heapq.heappush(moves, (max(at, goes_on) if at >= STALLED_AT else at, number, at))
    while moves:
        now, place, move = heapq.heappop(moves)
        if isinstance(move, float):
            verdict = scheduler.offer(Ticket(place, "model", move + DEADLINE_S, move), now)
            refused += [now] * (verdict is not None and move >= goes_on)
        else:
            scheduler.batch_done(move, now - move.started, now)
        while (batch := scheduler.take(now)) is not None:
            number += 1
            end = now + usual_s(len(batch)) * rng.lognormvariate(0.0, 0.05)
            heapq.heappush(moves, (end + stall_s * (now < STALLED_AT < end), number, batch))
        refused += [now for aside in scheduler.set_aside() if aside.ticket.arrived >= goes_on]
    return Refused(len(refused), max(refused, default=goes_on) - goes_on)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("load", [0.2, 0.4, 0.7])
def test_after_a_stall_of_a_second_nobody_is_refused_for_longer_than_the_queue_takes(slots: int, load: float) -> None:
    rate = load * slots * 32 / usual_s(32)
    found = [stalled(seed, rate, slots, 1.0) for seed in range(8)]
    assert max(one.last_s for one in found) < 0.6


@given(
    slots=st.integers(2, 8),
    stall_s=st.floats(0.2, 5.0),
    batches=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=8),
)
@settings(max_examples=50, deadline=None)
def test_what_a_stall_held_up_together_changes_no_prediction(slots: int, stall_s: float, batches: list[int]) -> None:
    estimate, now = Estimate(max_batch=64), 0.0
    for _ in range(20):
        for batch in (1, 2, 4, 8):
            estimate.observe(batch, 1.0, usual_s(batch), began=now)
            now += usual_s(batch)
    before = [estimate.predict(batch, 1.0) for batch in (1, 2, 4, 8)]
    for place, batch in enumerate(batches[:slots]):
        estimate.observe(batch, 1.0, usual_s(batch) + stall_s, began=now - 0.001 * place)
    assert [estimate.predict(batch, 1.0) for batch in (1, 2, 4, 8)] == before


def alone_and_then_together(seed: int, deadline_s: float) -> int:
    """Batches of all sizes, 15,000 requests one after another, many at once for a moment, and again one after another.

    How many of them all were refused.
    """
    rng, scheduler, is_slow = random.Random(seed), Scheduler(0.01), False
    scheduler.add_model(ModelSpec("model", deadline_s=deadline_s, max_batch=64))
    scheduler.set_slots(2)
    counts = [rng.randint(1, 150) for _ in range(200)] + [1] * 15_000
    counts += [rng.randint(20, 150) for _ in range(60)] + [1] * 2_000
    now, number, refused, ends = 0.0, 0, 0, list[tuple[float, int, Any]]()
    for count in counts:
        for _ in range(count):
            number += 1
            refused += scheduler.offer(Ticket(number, "model", now + deadline_s, now), now) is not None
        while (batch := scheduler.take(now)) is not None or ends:
            if batch is not None:
                is_slow = rng.random() < (0.6 if is_slow else 0.03)  # beside another program, for some batches
                seconds = (0.0002 + 0.00005 * len(batch)) * rng.lognormvariate(0.0, 0.15)
                end = now + seconds * (rng.uniform(3.0, 15.0) if is_slow else 1.0)
                heapq.heappush(ends, (end, batch.id, batch))
            else:
                now, _, done = heapq.heappop(ends)
                scheduler.batch_done(done, now - done.started, now)
        refused += len(scheduler.set_aside())
        now += 0.0005
    return refused


@pytest.mark.parametrize("seed", [2, 3])
def test_nobody_is_refused_where_many_come_at_once_after_a_long_time_of_single_requests(seed: int) -> None:
    assert alone_and_then_together(seed, 0.25) == 0


@pytest.mark.parametrize("slow", [2, 5, 20])
def test_batches_that_were_slow_in_a_row_have_nobody_refused_for_longer_than_0_3_s(slow: int) -> None:
    scheduler, now, number = Scheduler(0.01), 0.0, 0
    scheduler.add_model(ModelSpec("model", deadline_s=0.1))
    scheduler.set_slots(1)
    for _ in range(50):
        scheduler.observe("model", 1, 1.0, usual_s(1))

    def is_answered(seconds: float) -> bool:
        nonlocal now, number
        number += 1
        verdict = scheduler.offer(Ticket(number, "model", now + 0.1, now), now)
        batch = scheduler.take(now)
        if batch is not None:
            now += seconds
            scheduler.batch_done(batch, seconds, now)
        return verdict is None and batch is not None and seconds < 0.1

    for _ in range(slow):
        now += 1.1  # however sure the estimate is, one is tried after so long
        is_answered(0.3)
    began, answered = now, []
    while now < began + 2.0:
        asked = now
        answered.append((asked - began, is_answered(usual_s(1))))
        now += 0.01
    assert max((at for at, is_in_time in answered if not is_in_time), default=0.0) < 0.3


@given(factor=st.floats(3.0, 30.0), slots=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_a_machine_that_stays_slow_is_believed_once_each_slot_has_said_so_twice(factor: float, slots: int) -> None:
    estimate, now = Estimate(max_batch=64), 0.0
    for _ in range(40):
        estimate.observe(4, 1.0, usual_s(4), began=now)
        now += usual_s(4)
    slow_s = factor * usual_s(4)
    for _ in range(3):
        for place in range(slots):
            estimate.observe(4, 1.0, slow_s, began=now + 0.001 * place)
        now += slow_s + 0.001 * slots
    assert estimate.predict(4, 1.0) == pytest.approx(slow_s, rel=0.5)
