"""A device that two slots share: one server that is never left idle, whose next batch is bound as late as may be."""

from __future__ import annotations

from math import inf

import pytest
from tests.scheduler.worlds import ticket

from timebound.scheduler import Batch, ModelSpec, Scheduler
from timebound.scheduler.ticket import Took

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
PREPARE_S, FINISH_S = 0.0001, 0.00002  # per item


def gpu_s(batch: int) -> float:
    return 0.0052 + 0.0001985 * batch


SPEC = ModelSpec("model", 1.0, max_batch=128, batch_sizes=LADDER, step_s=(tuple(map(gpu_s, LADDER)),))
FIVE = ModelSpec(
    "model", 1.0, 5, max_batch=128, batch_sizes=LADDER,
    step_s=tuple(tuple(gpu_s(size) / 5 for size in LADDER) for _ in range(5)), together_s=(0.0015, 0.0018, 0.0025),
)  # fmt: skip
QUICK = ModelSpec("model", 0.25, max_batch=128, batch_sizes=LADDER, step_s=(tuple(map(gpu_s, LADDER)),))


class World:
    """A device of depth two and its scheduler; batches take exactly what they should."""

    def __init__(self, spec: ModelSpec = SPEC, devices: int = 1) -> None:
        self.scheduler = Scheduler(0.010)
        self.scheduler.add_model(spec)
        self.scheduler.set_slots(2 * devices, devices)
        self.seq = 0

    def ask(self, count: int, now: float, deadline_s: float = 1.0) -> None:
        for _ in range(count):
            self.seq += 1
            assert self.scheduler.offer(ticket(self.seq, now + deadline_s, arrived=now), now) is None

    def take(self, now: float, server: str = "gpu") -> Batch:
        batch = self.scheduler.take(now, server)
        assert batch is not None
        return batch

    def done(self, batch: Batch, now: float, waited_s: float = 0.0, device_s: float | None = None) -> None:
        finish_s = FINISH_S * len(batch)
        batch.took = Took(gpu_s(batch.step) if device_s is None else device_s, waited_s, finish_s)
        self.scheduler.batch_done(batch, now - batch.started, now)

    def run(self, count: int, now: float) -> float:
        """So many, alone; when they are done."""
        self.ask(count, now)
        batch = self.take(now)
        end = now + PREPARE_S * count + gpu_s(batch.step) + FINISH_S * count
        self.done(batch, end)
        return end


@pytest.mark.parametrize("batch", [1, 3, 8, 65, 97, 128])
def test_the_staircase_is_known_before_the_first_batch(batch: int) -> None:
    world = World()
    world.ask(batch, 0.0)
    step = next(size for size in LADDER if size >= batch)
    estimate = world.scheduler.view(0.0).lanes[0].estimate
    assert estimate.predict(batch, 1.0) == pytest.approx(gpu_s(step), rel=1e-6)


def test_members_that_differ_from_step_to_step_are_known_exactly() -> None:
    steps = ((0.001, 0.002, 0.004), (0.003, 0.003, 0.003))
    spec = ModelSpec("model", 1.0, 2, max_batch=4, batch_sizes=(1, 2, 4), step_s=steps)
    world = World(spec)
    world.ask(1, 0.0)
    estimate = world.scheduler.view(0.0).lanes[0].estimate
    for member in (0, 1):
        for place, size in enumerate(spec.batch_sizes):
            assert estimate.predict(size, 1.0, member) == pytest.approx(steps[member][place], rel=1e-6)


def test_a_grid_of_lengths_and_batch_sizes_is_known_before_the_first_batch() -> None:
    grid = tuple((size, ((0.001 * size, 0.0015 * size), (0.002 * size, 0.003 * size))) for size in (8.0, 16.0, 64.0))
    spec = ModelSpec("model", 1.0, 2, max_batch=2, batch_sizes=(1, 2), grid_s=grid)
    world = World(spec)
    world.ask(1, 0.0)
    estimate = world.scheduler.view(0.0).lanes[0].estimate
    for size, steps in grid:
        for member in (0, 1):
            assert estimate.predict(1, size, member) == pytest.approx(steps[member][0], rel=0.01)
            assert estimate.predict(2, size, member) == pytest.approx(steps[member][1], rel=0.01)


def test_nothing_is_tried_out_where_every_step_was_measured() -> None:
    spec = ModelSpec("model", 1.0, max_batch=4, batch_sizes=(1, 2, 4), step_s=((0.01, 0.03, 0.07),))
    world = World(spec)
    world.ask(100, 0.0)
    assert len(world.take(0.0)) == 1


def test_a_batch_is_cut_to_the_step_below_where_that_has_the_better_rate() -> None:
    world = World()
    world.ask(33, 0.0)
    assert len(world.take(0.0)) == 32, "48 for 33 would be a third of padding"
    other = World()
    other.ask(47, 0.0)
    assert len(other.take(0.0)) == 47


def test_a_lone_request_on_an_idle_device_never_waits() -> None:
    world = World()
    end = world.run(1, 0.0)
    world.ask(1, end)
    assert len(world.take(end)) == 1


def test_the_second_batch_is_bound_just_in_time() -> None:
    world = World()
    now = 0.0
    for count in (32, 64, 128, 32, 64, 128):
        now = world.run(count, now) + 1.0
    world.ask(64, now)
    first = world.take(now)
    begins, ends = now + PREPARE_S * 64, now + PREPARE_S * 64 + gpu_s(64)
    world.ask(32, now + 0.001)
    assert world.scheduler.take(now + 0.001, "gpu") is None
    due = world.scheduler.due
    assert begins < due < ends - PREPARE_S * 32
    assert due > ends - PREPARE_S * 32 - 0.004
    second = world.take(due)
    assert second.stage_end == pytest.approx(ends + gpu_s(32) + FINISH_S * 32, abs=0.002)
    world.done(first, ends + FINISH_S * 64)
    world.done(second, ends + gpu_s(32) + FINISH_S * 32, waited_s=ends - due - PREPARE_S * 32)


def test_until_it_is_known_how_long_preparing_takes_the_second_is_bound_at_once() -> None:
    world = World()
    world.ask(64, 0.0)
    world.take(0.0)
    world.ask(8, 0.001)
    assert len(world.take(0.001)) == 8


def test_nobody_is_woken_for_a_device_that_nobody_waits_for() -> None:
    world = World()
    now = world.run(8, 0.0)
    world.ask(8, now)
    world.take(now)
    assert world.scheduler.take(now, "gpu") is None
    assert world.scheduler.due == inf


def test_capacity_is_counted_in_devices() -> None:
    one, two = World(), World(devices=2)
    for world in (one, two):
        world.ask(128, 0.0)
        world.take(0.0)
        world.ask(512, 0.0)
    assert one.scheduler.retry_after_s(0.0) == pytest.approx(2 * two.scheduler.retry_after_s(0.0), rel=0.03)


def test_two_idle_devices_share_what_waits() -> None:
    world = World(devices=2)
    world.ask(64, 0.0)
    assert (len(world.take(0.0, "one")), len(world.take(0.0, "two"))) == (32, 32)


def test_who_cannot_be_in_time_behind_what_the_device_has_is_told_at_once() -> None:
    world = World()
    world.ask(128, 0.0)
    world.take(0.0)
    verdict = world.scheduler.offer(ticket(1000, 0.030), 0.0)
    assert verdict is not None
    assert verdict.reason == "deadline_unreachable"


def test_time_on_the_device_is_learned_and_not_what_was_waited_for() -> None:
    world = World()
    now = 0.0
    for _ in range(30):
        world.ask(64, now)
        batch = world.take(now)
        now += 0.5
        world.done(batch, now, waited_s=0.48 - gpu_s(64))
    world.ask(64, now)
    estimate = world.scheduler.view(now).lanes[0].estimate
    assert estimate.predict(64, 1.0) == pytest.approx(gpu_s(64), rel=0.01)
    assert estimate.crowds == {}


def test_a_small_batch_of_an_ensemble_runs_all_members_at_once() -> None:
    world = World(FIVE)
    world.ask(2, 0.0)
    batch = world.take(0.0)
    assert batch.is_at_once
    assert batch.predicted_s == pytest.approx(0.0018)


def test_a_large_batch_says_nothing_between_members_while_everything_fits() -> None:
    world = World(FIVE)
    world.ask(128, 0.0)
    batch = world.take(0.0)
    assert not batch.is_at_once
    assert batch.quiet_s >= batch.predicted_s == pytest.approx(gpu_s(128), rel=0.01)


def test_an_ensemble_runs_only_as_many_members_as_everybody_can_have() -> None:
    world = World(FIVE)
    world.ask(60 * 128, 0.0)
    batch = world.take(0.0)
    assert not batch.is_at_once
    assert 0 < batch.sure < 5
    assert batch.stage_s == pytest.approx(batch.sure * gpu_s(128) / 5, rel=0.01)


def test_a_batch_that_hangs_behind_another_is_not_killed_for_the_others_time() -> None:
    world = World()
    world.ask(128, 0.0, deadline_s=1.0)
    world.take(0.0)
    world.ask(128, 0.0, deadline_s=1.0)
    second = world.take(0.0)
    assert second.predicted_s == pytest.approx(2 * gpu_s(128), rel=0.01)
    assert world.scheduler.hang_limit_s(second) >= 3 * second.predicted_s


def test_a_new_worker_brings_its_own_measurements() -> None:
    world = World()
    now = world.run(64, 0.0)
    slower = ModelSpec(
        "model", 1.0, max_batch=128, batch_sizes=LADDER, step_s=(tuple(2 * gpu_s(size) for size in LADDER),)
    )
    world.scheduler.add_model(slower)
    world.ask(64, now)
    assert world.scheduler.view(now).lanes[0].estimate.predict(64, 1.0) == pytest.approx(2 * gpu_s(64), rel=1e-6)


def _apart(world: World, count: int, now: float, apart_s: float, deadline_s: float = 0.25) -> float:
    """So many, alone, that take so long besides the device; when they are done."""
    world.ask(count, now, deadline_s)
    batch = world.take(now)
    end = now + apart_s + gpu_s(batch.step) + FINISH_S * len(batch)
    world.done(batch, end)
    return end


def test_a_slow_first_batch_turns_nobody_away_for_longer_than_the_next_one_takes() -> None:
    world = World(QUICK)
    now = _apart(world, 1, 0.0, 0.24)
    world.ask(42, now, 0.25)
    tried = world.take(now)
    assert tried.reason == "long_shot", "nothing else runs, so nothing is lost by trying"
    world.done(tried, now + 0.005 + gpu_s(1))
    assert len(world.take(now + 0.005 + gpu_s(1))) == 41


def test_many_who_come_after_single_ones_are_not_taken_for_as_many_times_as_slow() -> None:
    world = World(QUICK)
    now = 0.0
    for _ in range(50):
        now = _apart(world, 1, now, 0.003)
    world.ask(128, now, 0.25)
    assert len(world.take(now)) == 128


def test_a_pause_of_a_worker_in_the_middle_is_an_accident() -> None:
    world = World(QUICK)
    now = 0.0
    for count in 10 * (8, 64, 128):
        now = _apart(world, count, now, PREPARE_S * count)
    now = _apart(world, 64, now, 1.0)
    world.ask(128, now, 0.1)
    assert len(world.take(now)) == 128


def test_preparing_that_becomes_slow_for_good_is_learned() -> None:
    world = World()
    now = 0.0
    for count in 10 * (32, 64, 128):
        now = _apart(world, count, now, PREPARE_S * count, 1.0)
    for count in 20 * (32, 64, 128):
        now = _apart(world, count, now, 20 * PREPARE_S * count, 1.0)
    world.ask(128, now, 0.15)
    assert world.take(now).reason == "long_shot", "128 take 0.26 s to prepare"
