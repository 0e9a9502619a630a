from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.tools.pipeline import Loop, Pipeline, ceiling

from timebound.errors import SetupError
from timebound.lab.fleet import EXAMPLES, HOURS_PER_MONTH, MachineType, read_machines, read_price
from timebound.lab.measured import Measured, Profile, choose
from timebound.lab.plan import FAST_RPS, Demand, Offer, World, cheapest, doubts, goodput_curve, offer
from timebound.lab.planned import advice, page, sureness, table
from timebound.profile import Machine, ProfileFile, Saved, read_saved, this_machine
from timebound.scheduler.estimate import Estimate
from timebound.scheduler.queue import length_bucket
from timebound.scheduler.saved import save

HERE = Machine("a processor", 2, 2)
TWO = MachineType("two", 2, 10.0)
DEMAND = Demand(rate=500.0, average=100.0, deadline_s=0.5, seeds=(1, 2))


def profile(overhead_s: float = 0.005, per_item_s: float = 0.004, members: int = 1, scatter: float = 0.05) -> Profile:
    """Learned from batches on two slots whose true times are known."""
    estimate, rng = Estimate(members, 32), random.Random(1)
    for _ in range(60):
        for batch in (1, 2, 4, 8, 16, 32):
            for member in range(members):
                seconds = (overhead_s + per_item_s * batch) * rng.lognormvariate(0.0, scatter)
                estimate.observe(batch, 1.0, seconds, member, 2)
    return Profile(save(estimate), HERE)


def test_the_simulated_machine_is_as_fast_as_the_one_that_was_measured() -> None:
    pace, rng = Measured(profile(), 2), random.Random(5)
    for batch in (1, 6, 32):
        drawn = [pace.draw(rng, batch, 1.0, 0, 2) for _ in range(2000)]
        assert sum(drawn) / len(drawn) == pytest.approx(0.005 + 0.004 * batch, rel=0.06)


def test_the_largest_rate_is_near_what_the_machine_can_do_and_never_above() -> None:
    world = World(profile(), TWO, DEMAND)
    possible = 2 * 32 / (0.005 + 0.004 * 32)  # two slots, batches of 32
    most = world.most(1)
    assert 0.85 * possible < most <= world.bound() < 1.08 * possible
    assert world.is_enough(world.at(most, 1))


def test_a_rate_above_the_largest_is_not_answered_well_enough() -> None:
    world = World(profile(), TWO, DEMAND)
    assert not world.is_enough(world.at(1.4 * world.bound(), 1))


def test_twice_the_cores_or_twice_the_speed_take_twice_the_rate() -> None:
    bound = World(profile(), TWO, DEMAND).bound()
    assert World(profile(), MachineType("four", 4, 1.0), DEMAND).bound() == pytest.approx(2 * bound, rel=0.01)
    assert World(profile(), MachineType("quick", 2, 1.0, speed=2.0), DEMAND).bound() == pytest.approx(
        2 * bound, rel=0.05
    )


def test_a_slot_with_half_the_cores_is_half_as_fast() -> None:
    threaded = Profile(profile().learned, Machine("a processor", 2, 1))  # one slot, a network on both cores
    whole, half = (World(threaded, MachineType("any", cores, 1.0), DEMAND) for cores in (2, 1))
    assert (whole.slots, half.slots) == (1, 1)
    assert half.bound() == pytest.approx(whole.bound() / 2, rel=0.1)


def test_no_machine_is_tried_with_more_than_can_be_told_or_is_needed() -> None:
    quick = profile(1e-6, 1e-6)
    assert World(quick, TWO, DEMAND).bound() == FAST_RPS
    much = msgspec.structs.replace(DEMAND, rate=10_000.0)
    assert World(quick, TWO, much).bound() == pytest.approx(12_000)


def test_it_is_known_where_larger_batches_than_were_measured_may_do_more() -> None:
    calm = profile()
    small = Profile({**calm.learned, "largest": [4, 4.0]}, HERE)
    assert Measured(small, 2).is_cut(0.5)
    assert not Measured(calm, 2).is_cut(0.5)  # its largest batch was met
    assert not Measured(small, 2).is_cut(0.03)  # what was met is more than fits


def test_an_ensemble_takes_more_if_it_may_answer_in_part() -> None:
    trio = profile(members=3)
    in_full = World(trio, TWO, msgspec.structs.replace(DEMAND, is_full=True)).most(1)
    in_part = World(trio, TWO, DEMAND).most(1)
    assert 0 < in_full < in_part


def test_machines_carry_the_peak_with_headroom_when_one_is_down() -> None:
    found = offer(profile(), TWO, DEMAND)
    working = found.machines - DEMAND.spare
    assert working * found.most_rps >= DEMAND.rate * 1.2 > (working - 1) * found.most_rps
    assert found.per_month == found.machines * TWO.price
    assert found.per_million == pytest.approx(found.per_month / (100.0 * HOURS_PER_MONTH * 3600) * 1e6)
    assert found.peak is not None
    assert found.one_down is not None
    assert found.peak.rate == pytest.approx(DEMAND.rate / found.machines)
    assert found.one_down.rate == pytest.approx(DEMAND.rate / working)
    assert found.one_down.in_time >= DEMAND.goodput
    assert found.peak.p99_ms <= 500


def test_a_deadline_that_no_batch_meets_leaves_no_offer() -> None:
    hasty = msgspec.structs.replace(DEMAND, deadline_s=0.008)
    found = offer(profile(), TWO, hasty)
    assert (found.machines, found.peak) == (0, None)
    assert cheapest([found]) is None
    assert "longer deadline" in advice(hasty, [found], 1)[0]
    assert "-" in table([found])


def test_the_usual_speed_counts_and_not_that_of_the_last_moment() -> None:
    calm = profile()
    disturbed = Profile({**calm.learned, "scale": [1.0], "usual_drift": 0.0}, HERE)
    assert Measured(disturbed.scaled(1.0), 2).mean(8, 1.0, 0, 2) < 1.2 * Measured(calm.scaled(1.0), 2).mean(
        8, 1.0, 0, 2
    )


def text_profile(lengths: tuple[float, ...] = (8.0, 32.0)) -> Profile:
    """Learned from batches of short and of long texts, as often; an item takes a millisecond a letter, alone or not."""
    estimate, rng = Estimate(1, 32), random.Random(1)
    for _ in range(80):
        for batch in (1, 2, 4):
            for size in lengths:
                estimate.observe(batch, size, 0.001 * batch * size * rng.lognormvariate(0.0, 0.03), 0, 2)
    counts = {str(length_bucket(size)): 100.0 for size in lengths}
    return Profile({**save(estimate), "lengths": counts}, HERE)


def test_inputs_of_all_lengths_that_came_are_simulated() -> None:
    pace, rng = Measured(text_profile(), 2), random.Random(5)
    drawn = [pace.size(rng) for _ in range(1000)]
    assert {length_bucket(size) for size in drawn} == {length_bucket(8.0), length_bucket(32.0)}
    assert sum(drawn) / len(drawn) == pytest.approx(20.0, rel=0.05)
    # Two slots, a millisecond a letter, 20 letters on average.
    assert pace.bound(0.5, 1) == pytest.approx(100.0, rel=0.1)


def test_a_profile_without_lengths_takes_them_from_what_ran() -> None:
    older = text_profile()
    del older.learned["lengths"]
    assert [round(each.share, 2) for each in older.lengths] == [0.5, 0.5]


def test_the_scatter_that_was_met_is_drawn_and_stragglers_are_as_late_as_they_were() -> None:
    estimate = Estimate(1, 32)
    for number in range(400):
        estimate.observe(1, 1.0, 0.110 if number % 20 == 0 else 0.010, 0, 1)
    pace, rng = Measured(Profile(save(estimate), HERE), 2), random.Random(5)
    drawn = [pace.draw(rng, 1, 1.0, 0, 1) for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.015, rel=0.1)
    assert sum(seconds > 0.08 for seconds in drawn) / len(drawn) == pytest.approx(0.05, abs=0.02)


def an_offer(kind: MachineType, low: float = 100.0, high: float = 100.0) -> Offer:
    return Offer(kind=kind, most_rps=100.0, most_low=low, most_high=high, machines=3, per_month=30.0, per_million=1.0)


def test_no_doubts_about_a_fresh_calm_profile_of_this_machine() -> None:
    assert doubts(profile(), [an_offer(TWO)], 1.0, HERE) == []


@pytest.mark.parametrize(
    ("changes", "offers", "age_days", "said"),
    [
        ({"machine": Machine("another", 2, 2)}, [an_offer(TWO)], 1.0, "another machine"),
        ({"machine": Machine()}, [an_offer(TWO)], 1.0, "does not say on what machine"),
        ({}, [an_offer(MachineType("one", 1, 5.0))], 1.0, "one: not the 2 cores"),
        ({}, [an_offer(TWO)], 90.0, "90 days old"),
        ({}, [msgspec.structs.replace(an_offer(TWO), is_cut=True)], 1.0, "no batch above 32"),
        ({}, [an_offer(TWO, 90.0, 110.0)], 1.0, "90 to 110/s"),
        ({"quantiles": [0.5, 2.0]}, [an_offer(TWO)], 1.0, "4.0 times as long"),
        ({"cells": [[5.0, 1.0, 1.0, 0.01]]}, [an_offer(TWO)], 1.0, "5 batches only"),
        ({"cells": [[500.0, 1.0, 30.0, 0.01]]}, [an_offer(TWO)], 1.0, "about as large"),
    ],
)
def test_each_doubt_is_told(changes: dict[str, Any], offers: list[Offer], age_days: float, said: str) -> None:
    calm = profile()
    machine = changes.pop("machine", calm.machine)
    (text,) = doubts(Profile({**calm.learned, **changes}, machine), offers, age_days, HERE)
    assert said in text


def test_how_sure_it_is_is_said_in_machines_and_money() -> None:
    demand = msgspec.structs.replace(DEMAND, rate=1000.0)
    (calm,) = sureness(demand, [an_offer(TWO)], [])
    assert "15%" in calm
    assert "12 to 16 machines, 120.00 to 160.00 a month" in calm  # 1,200/s over 115 and over 85, and one to spare
    (steady,) = sureness(msgspec.structs.replace(DEMAND, rate=10.0), [an_offer(TWO)], [])
    assert steady.endswith("; 15% off would be the same number of machines")
    unsure = sureness(demand, [an_offer(TWO)], ["old", "new"])
    assert "2 doubts" in unsure[0]
    assert unsure[1:] == ["doubt: old", "doubt: new"]


def test_one_model_is_chosen_or_asked_for() -> None:
    learned = profile().learned
    assert choose(Saved(1, {"a": learned}), "")[0] == "a"
    assert choose(Saved(1, {"a": learned, "b": learned}), "b")[0] == "b"
    with pytest.raises(SetupError, match="--model: a, b"):
        choose(Saved(1, {"a": learned, "b": learned}), "")
    with pytest.raises(SetupError, match="timebound tune"):
        choose(Saved(1, {"a": {**learned, "cells": []}}), "")


def test_a_saved_profile_says_where_it_was_learned_and_old_ones_still_count(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path, tmp_path / "app.py")
    file.write({"a": profile().learned}, this_machine(3))
    saved = read_saved(file.path)
    assert saved.machine == this_machine(3)
    assert saved.machine.cores > 0
    assert file.read() == saved.models
    file.path.write_text('{"version": 1, "models": {"a": {"cells": [], "lengths": {"4": 9.0}}}}')
    old = read_saved(file.path)
    assert old.machine == Machine()
    assert old.models == file.read() == {"a": {"cells": []}}, "its lengths mean something else"
    with pytest.raises(SetupError, match="no profile at"):
        read_saved(tmp_path / "nothing.json")
    file.path.write_text("[]")
    with pytest.raises(SetupError, match="is no profile"):
        read_saved(file.path)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"scale": [-307.99]},
        {"scale": [-4.0], "cells": [[1.1, 1.0, 1.0, 1.7e131]]},
        {"cells": [[1.1, 1.0, 1.0, None]]},
        {"cells": [[1.1, 1.0, 1.0, 0.0]]},
        {"cells": [[1.1, 1.0, 1.0, 2e-9]], "scale": [-4.0]},
        {"scale": []},
        {"quantiles": ["slow", "fast"]},
    ],
)
def test_a_profile_that_cannot_be_true_is_not_believed_and_one_line_says_so(
    nonsense: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    true = {
        "cells": [[9.0, 1.0, 1.0, 0.01]],
        "scale": [0.1],
        "crowd": {"2": 0.3},
        "largest": [1, 1.0],
        "quantiles": [0.9, 1.2],
    }
    file = ProfileFile(tmp_path, tmp_path / "app.py")
    file.write({"good": true, "bad": {**true, **nonsense}}, HERE)
    assert list(file.read()) == ["good"]
    (line,) = caplog.records
    assert line.__dict__["model"] == "bad"


def test_the_example_machines_are_three_and_said_to_be_examples() -> None:
    assert [(kind.cores, kind.price) for kind in read_machines(EXAMPLES)] == [(1, 5.0), (2, 10.0), (4, 20.0)]
    assert "examples, not offers" in EXAMPLES.read_text()


@pytest.mark.parametrize(
    ("text", "price"), [("5/month", 5.0), ("5", 5.0), ("€4.50/mo", 4.5), ("0.01/hour", 7.3), ("1 / h", 730.0)]
)
def test_prices_are_per_month(text: str, price: float) -> None:
    assert read_price(text) == pytest.approx(price)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no machine type"),
        ("[a", "not valid TOML"),
        ("a = 1", "no table"),
        ("[a]\ncores = 1", "no price"),
        ("[a]\nprice = 1", "no cores"),
        ("[a]\ncores = 0\nprice = 1", "whole number from 1"),
        ("[a]\ncores = 1\nprice = 'much'", "no price"),
        ("[a]\ncores = 1\nprice = 1\nspeed = 0", "above 0"),
        ("[a]\ncores = 1\nprice = 1\nram = 2", "unknown field 'ram'"),
    ],
)
def test_a_wrong_machine_file_is_told_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(text)
    with pytest.raises(SetupError, match=said):
        read_machines(file)


def test_table_sentences_and_page_tell_the_same_plan() -> None:
    found = offer(profile(), TWO, DEMAND)
    sentences = advice(DEMAND, [found], 1)
    assert f"{found.machines} x two, {found.per_month:,.2f} a month" in sentences[0]
    assert f"{found.per_month:,.2f}" in table([found])
    assert any(f"takes {found.most_rps:,.1f}/s at most" in one for one in sentences)
    quick = advice(DEMAND, [msgspec.structs.replace(found, most_rps=FAST_RPS)], 1)
    assert any("takes 5,000.0/s or more" in one for one in quick)
    curves = {"two": goodput_curve(profile(), TWO, DEMAND, [100.0, 400.0, 900.0])}
    html = page("plan", DEMAND, [found], sentences, curves)
    assert html.count("<svg") == 3
    assert f"{found.per_month:,.2f}" in html


def on_a_gpu() -> Profile:
    """As a gateway saves it whose slots share a device."""
    world = Loop(Pipeline(), 64)
    world.run()
    machine = Machine("some processor", 16, 2, gpus=1)
    return Profile(world.learned(), machine)


def test_a_profile_of_a_gpu_is_planned_with_in_gpus() -> None:
    one, two = (World(on_a_gpu(), MachineType("rented", 16, 1.0, gpus=count), DEMAND) for count in (1, 2))
    assert one.bound() * DEMAND.goodput == pytest.approx(ceiling(Pipeline()), rel=0.03)
    assert two.slots == 2
    assert 0.9 * one.bound() < one.most(1) <= one.bound()
    with pytest.raises(SetupError, match="say how many this machine has"):
        World(on_a_gpu(), TWO, DEMAND)
