"""The scheduler around a device in simulated time: how near it comes to a device that is never idle nor padded."""

from __future__ import annotations

import pytest
from benchmarks.policy.device import off_s
from benchmarks.tools.pipeline import POWERS, Loop, Pipeline, ceiling

AT_ONCE = Pipeline(is_just_in_time=False, ladder=POWERS)


def share(pipeline: Pipeline, clients: int) -> float:
    seen = Loop(pipeline, clients).run()
    assert seen.unanswered == 0
    return seen.rate / ceiling(pipeline)


def test_two_slots_bound_just_in_time_leave_the_device_neither_idle_nor_half_full() -> None:
    assert share(Pipeline(), 256) >= 0.97
    assert share(Pipeline(), 512) >= 0.97


@pytest.mark.parametrize(("clients", "ahead"), [(64, 0.12), (128, 0.08), (256, 0.05)])
def test_bound_at_once_with_powers_of_two_is_slower(clients: int, ahead: float) -> None:
    assert share(Pipeline(), clients) >= share(AT_ONCE, clients) + ahead


def test_one_slot_leaves_the_device_idle_while_it_prepares() -> None:
    assert share(Pipeline(slots=1, hands=8), 512) < 0.85


def test_fewer_hands_are_given_batches_earlier() -> None:
    assert share(Pipeline(hands=2), 512) >= 0.97


@pytest.mark.parametrize("clients", [64, 256, 512])
def test_batches_end_within_two_milliseconds_of_what_was_predicted(clients: int) -> None:
    assert off_s(Loop(Pipeline(), clients).run()) < 0.002


def test_a_lone_client_never_waits_for_a_timer() -> None:
    pipeline = Pipeline()
    seen = Loop(pipeline, 1).run()
    own_s = pipeline.prepare_s / pipeline.hands + pipeline.device_s(1) + 2 * pipeline.hop_s + 2e-4
    assert seen.p50_s < own_s + 0.0005


def test_short_deadlines_are_met_behind_another_batch() -> None:
    seen = Loop(Pipeline(deadline_s=0.12), 256).run()
    assert seen.unanswered < 0.01 * seen.rate


@pytest.mark.parametrize(("load", "members"), [(0.8, 4.99), (1.0, 4.9), (1.5, 3.1), (2.0, 2.3)])
def test_an_ensemble_in_an_overload_answers_everybody_with_the_members_that_fit(load: float, members: float) -> None:
    seen = Loop(Pipeline(members=5, deadline_s=0.25), rate=load * ceiling(Pipeline())).run()
    assert seen.unanswered < 0.005 * seen.rate
    assert seen.members >= members
    assert seen.busy >= 0.94


@pytest.mark.parametrize("clients", [256, 512])
def test_an_ensemble_loses_nothing_by_being_anytime_while_all_of_it_fits(clients: int) -> None:
    seen = Loop(Pipeline(members=5), clients).run()
    assert seen.rate >= 0.97 * ceiling(Pipeline())
    assert seen.members == 5.0


def test_a_lone_client_of_an_ensemble_gets_all_members_at_once() -> None:
    pipeline = Pipeline(members=5)
    assert Loop(pipeline, 1).run().p50_s < pipeline.together * pipeline.device_s(1) + 0.0015


def test_requests_in_more_of_a_hurry_than_their_model_get_as_many_members() -> None:
    hurried = Pipeline(members=5, timeout_s=0.25)
    seen = Loop(hurried, rate=1.5 * ceiling(hurried)).run()
    assert seen.unanswered < 0.005 * seen.rate
    assert seen.members >= 3.1
