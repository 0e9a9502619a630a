"""How much the shipped policy gets out of a machine, as a share of what is possible at all."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
from benchmarks.tools.arrivals import Users, bursts, constant, poisson, spike, text_size
from benchmarks.tools.machine import CPU_LIKE, GPU_LIKE, Speed
from benchmarks.tools.simulate import Setting, Simulation, judged
from benchmarks.tools.simulated import is_in_time
from tests.scheduler.worlds import steady, trained

CURVES = {"cpu": CPU_LIKE, "gpu": GPU_LIKE}
SMALL_CNN = Speed(0.0015, 0.0096, noise=0.08)


@pytest.mark.parametrize("load", [1.0, 1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("curve", CURVES)
def test_at_least_94_percent_of_the_clairvoyant_bound(curve: str, load: float) -> None:
    _, report, bound = steady(CURVES[curve], load, seconds=40.0)
    assert report.in_time >= 0.94 * bound
    assert (report.late, report.lost, report.computed_twice) == (0, 0, 0)
    assert report.sends == 1.0


@pytest.mark.parametrize("load", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("curve", CURVES)
def test_in_a_lasting_overload_answers_come_early(curve: str, load: float) -> None:
    _, report, _ = steady(CURVES[curve], load)
    assert report.p50_over_deadline < 0.5


@pytest.mark.parametrize("load", [1.0, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("curve", CURVES)
def test_an_ensemble_gives_way_member_by_member(curve: str, load: float) -> None:
    _, report, _ = steady(replace(CURVES[curve], members=3), load)
    assert report.in_time >= 0.99
    assert report.mean_members >= 0.92 * min(3.0, 3.0 / load)


@pytest.mark.parametrize(("load", "share"), [(0.8, 1.0), (1.0, 0.93), (1.5, 0.94), (2.0, 0.94)])
def test_a_small_network_with_a_short_deadline(load: float, share: float) -> None:
    _, report, bound = steady(SMALL_CNN, load, deadline_s=0.25)
    assert report.in_time >= share * bound
    assert load < 1.5 or report.p50_over_deadline < 0.5
    _, three, _ = steady(replace(SMALL_CNN, members=3), load, deadline_s=0.25)
    assert three.in_time >= 0.99


@pytest.mark.parametrize("curve", CURVES)
def test_bursts_cost_little_more_than_they_must(curve: str) -> None:
    speed = CURVES[curve]
    rate = 0.9 * speed.capacity(2, 1.0)
    setting = Setting({"model": speed}, until=30.0)
    report = Simulation(setting, poisson(bursts(rate), 3 * rate, 30.0)).run()
    assert report.in_time >= 0.79  # the clairvoyant bound is about 0.89; deadline order alone reaches 0.81 to 0.83


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("members", [1, 3])
def test_after_a_spike_the_next_second_is_good_again(curve: str, members: int) -> None:
    speed = replace(CURVES[curve], members=members)
    capacity = speed.capacity(2, 1.0)
    arrivals = poisson(spike(0.8 * capacity, 4 * capacity, 12.0, 15.0), 4 * capacity, 24.0)
    simulation = Simulation(Setting({"model": speed}, until=24.0), arrivals)
    simulation.run()
    for second in range(16, 20):
        asked = [r for r in simulation.requests if second <= r.arrived < second + 1]
        assert sum(r.quality == "full" for r in asked) >= 0.95 * len(asked)


@pytest.mark.parametrize(
    ("speed", "load", "seed"),
    [
        *((Speed(0.004, 0.0095, members=3, noise=0.08), 3.0, seed) for seed in (1, 2, 3)),
        # One member each just fits: the backlog is deep though nothing is given up.
        *((Speed(0.0015, 0.0045, members=3, noise=0.15), 2.85, seed) for seed in (2, 236)),
    ],
)
def test_within_one_deadline_of_an_overload_an_ensemble_gives_full_answers_only(
    speed: Speed, load: float, seed: int
) -> None:
    deadline_s, end = 0.25, 15.0
    capacity = speed.capacity(2, deadline_s)
    arrivals = poisson(spike(0.8 * capacity, load * capacity, 5.0, end), load * capacity, 20.0, seed=seed)
    simulation = Simulation(Setting({"model": speed}, deadline_s=deadline_s, until=20.0, seed=seed), arrivals)
    simulation.run()
    lesser = [r for r in simulation.requests if end - 1.0 <= r.arrived < end + 1.0 and r.quality != "full"]
    assert max(r.answered_at for r in lesser) <= end + deadline_s


@pytest.mark.parametrize("curve", CURVES)
def test_an_idle_server_adds_no_wait(curve: str) -> None:
    speed = replace(CURVES[curve], noise=0.0, straggler_share=0.0)
    simulation = Simulation(Setting({"model": speed}, until=60.0), poisson(constant(0.5), 0.5, 60.0))
    simulation.run()
    waits = sorted(r.answered_at - r.arrived for r in simulation.requests)
    assert waits[len(waits) // 2] == pytest.approx(speed.mean(1), abs=1e-3)


@pytest.mark.parametrize("curve", CURVES)
def test_predictions_that_are_half_the_truth_are_repaired(curve: str) -> None:
    speed = CURVES[curve]
    _, exact, _ = steady(speed, 1.5, scheduler=trained(speed, 1.0))
    _, wrong, _ = steady(speed, 1.5, scheduler=trained(speed, 1.0, error=-0.5))
    assert wrong.in_time >= 0.9 * exact.in_time


@pytest.mark.parametrize(("curve", "load"), [("cpu", 0.7), ("gpu", 0.5), ("gpu", 0.7)])
def test_long_texts_are_served_like_short_ones(curve: str, load: float) -> None:
    _, report, _ = steady(CURVES[curve], load, text=True)
    assert report.in_time >= 0.9
    assert report.in_time_longest >= 0.8 * report.in_time


@pytest.mark.parametrize(("speed", "least"), [(Speed(0.0005, 0.0024, noise=0.08), 0.93), (CPU_LIKE, 0.9)])
def test_texts_of_mixed_length_are_hardly_padded_where_overhead_is_small(speed: Speed, least: float) -> None:
    _, report, _ = steady(speed, 1.0, text=True)
    assert report.in_time >= least


@pytest.mark.parametrize("overhead_s", [0.0015, 0.003])
def test_texts_in_a_closed_loop_are_hardly_padded_to_fill_batches(overhead_s: float) -> None:
    sums = Counter[str]()

    def note(_: Simulation, event: str, thing: object) -> None:
        if event == "batch":
            sums["real"] += sum(one.size for one in thing.tickets)  # type: ignore[attr-defined]
            sums["padded"] += len(thing) * thing.size  # type: ignore[arg-type,attr-defined]

    speed = Speed(overhead_s, 0.0011, noise=0.1)
    setting = Setting({"model": speed}, deadline_s=5.0, until=20.0, size=text_size)
    Simulation(setting, users=[Users(50, "model", think_s=(0.0, 0.0))], probe=note).run()
    assert sums["real"] >= 0.85 * sums["padded"]


def test_a_text_model_that_is_fastest_alone_is_not_batched() -> None:
    speed = Speed(0.0001, 0.0024, batch_power=1.2, noise=0.05)
    setting = Setting({"model": speed}, until=12.0, judge_from=4.0)
    users = Users(50, "model", think_s=(0.0, 0.0))
    simulation = Simulation(setting, users=[users])
    report = simulation.run()
    rate = len(list(judged(simulation))) / (setting.judge_until - setting.judge_from)
    assert rate >= 0.95 * speed.capacity(2, 1.0)
    assert report.mean_batch < 1.3


@pytest.mark.parametrize("load", [1.0, 1.5])
def test_no_model_starves_another(load: float) -> None:
    speed, shares = Speed(0.040, 0.00125), {"a": 0.48, "b": 0.24, "c": 0.16, "d": 0.12}
    rate = load * speed.capacity(2, 1.0)
    streams = [poisson(constant(rate * p), rate * p, 25.0, model=name) for name, p in shares.items()]
    setting = Setting(dict.fromkeys(shares, speed), until=25.0)
    simulation = Simulation(setting, heapq.merge(*streams, key=lambda arrival: arrival.at))
    report = simulation.run()
    assert report.in_time >= 0.93 * min(1.0, 1 / load)
    for name in shares:
        mine = [r for r in judged(simulation) if r.model == name]
        assert sum(map(is_in_time, mine)) >= 0.85 * report.in_time * len(mine)


def test_without_a_fallback_retries_leave_first_attempts_their_goodput() -> None:
    _, report, bound = steady(GPU_LIKE, 1.5, can_fallback=False, has_guard=False)
    assert report.in_time >= 0.93 * bound
    assert report.sends > 1.3


@pytest.mark.parametrize("curve", CURVES)
def test_clients_that_all_hedge_are_served_as_well_as_those_who_do_not(curve: str) -> None:
    plain, hedging = (
        [steady(CURVES[curve], 1.5, seed=seed, hedge_after=after) for seed in (1, 2)] for after in (0.0, 0.5)
    )
    assert all(simulation.hedged > 100 for simulation, _, _ in hedging)
    assert mean(report.in_time for _, report, _ in hedging) >= mean(report.in_time for _, report, _ in plain) - 0.01


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize("curve", CURVES)
def test_a_backend_that_runs_some_sizes_only_is_used_as_well(curve: str, load: float) -> None:
    speed = replace(CURVES[curve], batch_sizes=(1, 2, 4, 8, 16, 32, 64))
    edges = Counter[bool]()

    def note(_: Simulation, event: str, thing: object) -> None:
        if event == "batch" and thing.reason in ("best_rate", "newest_first"):  # type: ignore[attr-defined]
            edges[len(thing) in speed.batch_sizes] += 1  # type: ignore[arg-type]

    _, report, bound = steady(speed, load, probe=note)
    assert report.in_time >= 0.93 * bound
    assert edges[True] > 20 * edges[False]


def test_slots_that_slow_each_other_down_are_coped_with() -> None:
    _, report, bound = steady(replace(SMALL_CNN, crowding=0.5), 1.5, deadline_s=0.25)
    assert report.in_time >= 0.93 * bound


def test_an_important_class_is_served_first_in_overload() -> None:
    rate = 2.0 * CPU_LIKE.capacity(2, 1.0)
    priorities: dict[int, int] = {}

    def note(simulation: Simulation, event: str, thing: object) -> None:
        if event == "batch":
            priorities.update((t.request.key, t.priority) for t in thing.tickets)  # type: ignore[attr-defined]

    arrivals = poisson(constant(rate), rate, 20.0, priorities=(0, 0, 0, 1))
    simulation = Simulation(Setting({"model": CPU_LIKE}, until=20.0), arrivals, probe=note)
    simulation.run()
    served = [priorities[r.key] for r in judged(simulation) if is_in_time(r)]
    important = len(list(judged(simulation))) / 4
    assert sum(served) >= 0.93 * important
