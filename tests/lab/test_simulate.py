from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.tools import simulate as whole
from benchmarks.tools.arrivals import constant, poisson, text_size
from benchmarks.tools.machine import CPU_LIKE, GPU_LIKE, Speed

from timebound.lab.simulate import Setting, Simulation
from timebound.scheduler import ModelSpec, Scheduler


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize("speed", [CPU_LIKE, GPU_LIKE, replace(CPU_LIKE, members=3)])
def test_a_plan_sees_what_the_tests_of_the_scheduler_see(speed: Speed, load: float) -> None:
    rate = load * speed.capacity(2, 1.0)
    arrivals = list(poisson(constant(rate), rate, 15.0, size=text_size))
    scheduler = Scheduler(0.010)
    scheduler.add_model(ModelSpec("model", 1.0, speed.members, speed.max_batch))
    plain = Simulation(Setting({"model": speed}), arrivals, scheduler)
    other = whole.Simulation(whole.Setting({"model": speed}, retries=0), arrivals)
    plain.play()
    other.play()
    assert len(plain.jobs) > 100
    assert [(job.members, job.answered_at) for job in plain.jobs] == [
        (r.members, r.answered_at) for r in other.requests
    ]
