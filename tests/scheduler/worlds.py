"""Small worlds for the tests: a scheduler that knows its model exactly, and one-line simulations."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.tools.arrivals import constant, one_size, poisson, text_size
from benchmarks.tools.machine import Speed, clairvoyant_share
from benchmarks.tools.simulate import Probe, Setting, Simulation
from benchmarks.tools.simulated import Report

from timebound.scheduler import ModelSpec, Scheduler, Ticket


def ticket(seq: int, deadline: float, arrived: float = 0.0, **more: object) -> Ticket:
    return Ticket(seq=seq, model="model", deadline=deadline, arrived=arrived, **more)  # type: ignore[arg-type]


def trained(speed: Speed, deadline_s: float, error: float = 0.0, margin_s: float = 0.010) -> Scheduler:
    """A scheduler that has seen every batch size take its exact time, or one that is wrong by `error`."""
    scheduler = Scheduler(margin_s)
    scheduler.add_model(ModelSpec("model", deadline_s, speed.members, speed.max_batch))
    for batch in [1] * 80 + [*range(1, speed.max_batch + 1)] * 2:
        for size in (1.0, 4.0):
            for member in range(speed.members):
                seconds = (1.0 + error) * speed.mean(batch, size) * speed.member_share(member)
                scheduler.observe("model", batch, size, seconds, member)
    return scheduler


def steady(
    speed: Speed, load: float, *, deadline_s: float = 1.0, seconds: float = 25.0, slots: int = 2, seed: int = 1,
    text: bool = False, probe: Probe | None = None, scheduler: Scheduler | None = None, **more: object,
) -> tuple[Simulation, Report, float]:  # fmt: skip
    """A run at `load` times capacity; also returns the clairvoyant bound."""
    capacity = speed.capacity(slots, deadline_s)
    size = text_size if text else one_size
    setting = Setting({"model": speed}, deadline_s=deadline_s, slots=slots, until=seconds, seed=seed)
    setting = replace(setting, **more)  # type: ignore[arg-type]
    rate = load * capacity
    arrivals = poisson(constant(rate), rate, seconds, seed=seed, size=size)
    simulation = Simulation(setting, arrivals, probe=probe, scheduler=scheduler)
    report = simulation.run()
    times = [request.arrived for request in simulation.requests]
    bound = clairvoyant_share(times, deadline_s, capacity, setting.judge_from, setting.judge_until)
    return simulation, report, bound
