"""What must hold in every world: the simulator draws one, and a probe looks at each decision."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.tools.arrivals import Arrival, bursts, constant, one_size, poisson, text_size
from benchmarks.tools.machine import CPU_LIKE, GPU_LIKE, Speed
from benchmarks.tools.simulate import Job, Setting, Simulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduler.worlds import trained

from timebound.scheduler import Batch, Scheduler, Ticket

SECONDS = 5.0
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@dataclass(frozen=True)
class World:
    setting: Setting
    rate: float
    has_bursts: bool
    text: bool

    def simulate(self, scheduler: Scheduler | None = None, probe: Any = None) -> Simulation:
        simulation = Simulation(self.setting, self.arrivals(), probe=probe, scheduler=scheduler)
        simulation.run()
        return simulation

    def arrivals(self) -> list[Arrival]:
        rate = bursts(self.rate, period_s=2.0) if self.has_bursts else constant(self.rate, ramp_s=0.0)
        size = text_size if self.text else one_size
        return list(poisson(rate, 3 * self.rate, SECONDS, seed=self.setting.seed, size=size))


@st.composite
def worlds(draw: st.DrawFn, noise: bool = True) -> World:
    drawn = Speed(draw(st.floats(0.001, 0.1)), draw(st.floats(0.0005, 0.03)))
    speed = replace(
        draw(st.sampled_from([CPU_LIKE, GPU_LIKE, drawn])),
        members=draw(st.sampled_from([1, 3])),
        max_batch=draw(st.sampled_from([1, 8, 64])),
        noise=draw(st.sampled_from([0.0, 0.05, 0.3])) if noise else 0.0,
        straggler_share=draw(st.sampled_from([0.0, 0.02])) if noise else 0.0,
        crowding=draw(st.sampled_from([0.0, 0.4])) if noise else 0.0,
    )
    slots, deadline_s = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([0.3, 1.0]))
    load = draw(st.sampled_from([0.2, 0.8, 1.0, 1.5, 3.0]))
    rate = min(300.0, load * speed.capacity(slots, deadline_s))
    setting = Setting(
        {"model": speed}, deadline_s=deadline_s, slots=slots, until=SECONDS, seed=draw(st.integers(0, 999))
    )
    return World(setting, rate, draw(st.booleans()), draw(st.booleans()))


@dataclass
class Watch:
    """A probe that checks what must hold at every moment."""

    may_run_again: bool = False
    runs: Counter[int] = field(default_factory=Counter)
    answered: set[int] = field(default_factory=set)
    largest: int = 1
    started: list[Batch] = field(default_factory=list)

    def __call__(self, simulation: Simulation, event: str, thing: Any) -> None:
        assert len(simulation.running) <= simulation.setting.slots
        if event == "batch":
            self.check_batch(simulation, thing)
        elif event == "answer":
            assert thing.key not in self.answered
            self.answered.add(thing.key)
        elif event == "idle":
            check_nothing_feasible_waits(simulation)

    def check_batch(self, simulation: Simulation, batch: Batch) -> None:
        keys = [ticket.request.key for ticket in batch.tickets if isinstance(ticket, Job)]
        assert len(keys) == len(batch)
        assert len(set(keys)) == len(keys)
        assert not self.answered.intersection(keys)
        speed = simulation.setting.speeds[batch.model]
        assert len(batch) <= min(speed.max_batch, max(2, 2 * self.largest))
        self.largest = max(self.largest, len(batch))
        self.runs.update(keys)
        assert self.may_run_again or max(self.runs[key] for key in keys) == 1
        assert batch.reason
        self.started.append(batch)


def check_nothing_feasible_waits(simulation: Simulation) -> None:
    """Work conservation: a slot is idle only if no waiting ticket fits, alone and safely."""
    if simulation.alive == 0:
        return
    view = simulation.scheduler.view(simulation.now)
    for lane in view.lanes:
        for queue in lane.lane.queues:
            assert queue.by_deadline.last[0] < view.due(lane, 1)


@given(worlds())
@few
def test_every_request_gets_exactly_one_answer_in_time(world: World) -> None:
    simulation = world.simulate(probe=Watch())
    for request in simulation.requests:
        assert (request.answers, request.attempts) == (1, 1)
        assert request.answered_at - request.arrived <= request.deadline_s


@given(worlds(), st.lists(st.tuples(st.floats(0.5, 4.5), st.floats(0.2, 1.5)), min_size=1, max_size=4))
@few
def test_worker_deaths_lose_nothing(world: World, deaths: list[tuple[float, float]]) -> None:
    deaths = sorted(deaths)[: world.setting.slots]
    watch = Watch(may_run_again=True)
    simulation = replace(world, setting=replace(world.setting, deaths=deaths)).simulate(probe=watch)
    for request in simulation.requests:
        assert request.answers == 1
        assert request.answered_at - request.arrived <= request.deadline_s
    assert max(watch.runs.values(), default=0) <= 2


@given(worlds(noise=False))
@few
def test_with_exact_predictions_nothing_that_was_started_is_late(world: World) -> None:
    speed = world.setting.speeds["model"]
    assert isinstance(speed, Speed)
    scheduler = trained(speed, world.setting.deadline_s)
    late: list[Ticket] = []

    def probe(_: Simulation, event: str, thing: Any) -> None:
        if event == "guard" and thing.phase.value == "running" and not thing.members_done:
            late.append(thing)

    simulation = world.simulate(scheduler, probe)
    assert late == []
    assert simulation.wasted_s <= 1e-9


@given(worlds())
@few
def test_clients_that_send_again_are_computed_once(world: World) -> None:
    """No fallback and no guard: clients do give up and come back."""
    setting = replace(world.setting, can_fallback=False, has_guard=False)
    simulation = replace(world, setting=setting).simulate(probe=Watch())
    assert all(request.runs <= 1 and request.answers <= 1 for request in simulation.requests)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(8, 24)), min_size=40, max_size=300),
    st.sampled_from([CPU_LIKE, GPU_LIKE]),
)
@few
def test_equal_deadlines_start_in_order_of_arrival(steps: list[tuple[int, int]], speed: Speed) -> None:
    """Each step brings some tickets with deadlines on a coarse grid, so that there are many ties; all loads occur."""
    scheduler, now, seq = trained(speed, 1.0), 0.0, 0
    scheduler.set_slots(1)
    running: list[Batch] = []
    last: dict[float, int] = {}
    for count, ahead in steps:
        now += 1 / 16
        for _ in range(count):
            seq += 1
            deadline = math.ceil(now * 2) / 2 + ahead / 8
            scheduler.offer(Ticket(seq, "model", deadline, now), now)
        for batch in [batch for batch in running if batch.started + batch.predicted_s <= now]:
            running.remove(batch)
            scheduler.batch_done(batch, batch.predicted_s, now)
        while (taken := scheduler.take(now)) is not None:
            running.append(taken)
            for ticket in taken.tickets:
                assert ticket.seq > last.get(ticket.deadline, 0)
                last[ticket.deadline] = ticket.seq


@given(worlds())
@few
def test_a_batch_is_in_order_of_deadline(world: World) -> None:
    watch = Watch()
    replace(world, text=False).simulate(probe=watch)
    for batch in watch.started:
        order = [(ticket.deadline, ticket.seq) for ticket in batch.tickets]
        assert order == sorted(order)


@given(worlds())
@settings(few, max_examples=5)
def test_the_same_seed_gives_the_same_decisions(world: World) -> None:
    runs = [world.simulate() for _ in range(2)]
    first, second = ([(r.quality, r.members, r.answered_at) for r in run.requests] for run in runs)
    assert first == second


@given(worlds(), st.integers(0, 40))
@few
def test_only_the_request_that_kills_its_worker_suffers(world: World, killer: int) -> None:
    """At light load, where the survivors have time to run alone."""
    setting = replace(world.setting, killers=frozenset({killer}), slots=4, deadline_s=1.0)
    setting = replace(setting, speeds={"model": replace(CPU_LIKE, noise=0.05, straggler_share=0.0)})
    simulation = World(setting, 40.0, False, False).simulate(probe=Watch(may_run_again=True))
    for request in simulation.requests:
        assert request.answers == 1
        assert (request.quality == "full") == (request.key != killer)
