"""Many who wait for one moment are answered one after the other, the last of them in time."""

from __future__ import annotations

import pytest
from tests.requests.gateway import World

from timebound.requests.crowd import MANY, Crowd
from timebound.types import Outcome

COUNT = 1000
ANSWER_S = 0.0002
"""What one fallback takes here, one after the other."""


def test_of_those_due_together_each_is_due_before_the_next_by_what_an_answer_costs() -> None:
    crowd = Crowd()
    times = [100.0] * 10
    first = 100.0 - 9 * crowd.each_s
    assert crowd.count_due(times, first - 1e-9) == 0
    assert crowd.count_due(times, first + 1e-9) == 1
    assert crowd.count_due(times, 100.0 - crowd.each_s / 2) == 9
    assert crowd.count_due(times, 100.0) == 10


def test_who_is_due_far_apart_is_not_answered_early() -> None:
    crowd = Crowd()
    assert crowd.count_due([100.0, 101.0, 102.0], 99.9) == 0
    assert crowd.count_due([100.0, 101.0, 102.0], 100.1) == 1


def test_what_an_answer_costs_is_learned_at_once_where_it_is_more_and_slowly_where_it_is_less() -> None:
    crowd = Crowd()
    before = crowd.each_s
    crowd.asked()
    crowd.answered(0.020 + 100 * 3 * before, of=100, alone_s=0.020)
    dear = crowd.each_s
    assert dear > 3 * before
    crowd.asked()
    crowd.answered(0.020, of=100, alone_s=0.020)
    assert 0.9 * dear < crowd.each_s < dear
    for _ in range(10_000):
        crowd.asked()
        crowd.answered(0.020, of=100, alone_s=0.020)
    assert crowd.each_s < before


def serve_fallbacks(world: World, seconds: float) -> None:
    """Let time pass; whatever fallback is asked for takes `ANSWER_S`, one after the other."""
    end = world.clock.now() + seconds
    while world.clock.now() < end:
        if world.asked:
            world.loop.advance(ANSWER_S)
            world.asked.pop(0)[2](Outcome(b"cheap"))
        else:
            world.loop.advance(0.001)


def test_a_thousand_with_one_deadline_and_no_worker_all_get_their_fallback_in_time() -> None:
    world = World(has_fallback=True)
    world.submit(*[f"r{number}" for number in range(COUNT)])
    serve_fallbacks(world, 1.0 - 0.010)  # one margin before the deadline of all of them
    assert list(world.qualities().values()) == ["fallback"] * COUNT
    assert world.errors() == {}


def test_they_wait_as_long_as_they_can() -> None:
    world = World(has_fallback=True)
    world.submit(*[f"r{number}" for number in range(COUNT)])
    world.loop.advance(0.5)
    assert world.asked == []


def test_a_few_are_asked_no_earlier_than_one() -> None:
    world = World(has_fallback=True)
    world.submit(*[f"r{number}" for number in range(MANY)])
    world.loop.advance(0.96)
    assert world.asked == []


@pytest.mark.parametrize("is_stuck", [False, True])
def test_nobody_is_given_up_early_while_a_worker_gets_on(is_stuck: bool) -> None:
    world = World(has_fallback=True, max_batch=16)
    world.learn_speed()
    world.submit(*[f"r{number}" for number in range(300)])
    world.loop.run_due()
    for _ in range(44):
        world.loop.advance(0.020)
        if world.running and not is_stuck:
            world.answer("a")
    assert bool(world.asked) == is_stuck
    assert len(world.answered()) == (1 if is_stuck else 301)
