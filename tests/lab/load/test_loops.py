from __future__ import annotations

import pytest
from tests.lab.load.world import World

from timebound.lab.load.attempts import Manners
from timebound.lab.load.loops import BREATH_S, ClosedLoop, OpenLoop
from timebound.lab.load.schedule import Phase, even


def test_an_open_loop_sends_at_its_times_whatever_the_server_does() -> None:
    world = World()
    started = world.start(OpenLoop(even([Phase(10.0, 1.05)])))
    world.advance(1.2)
    assert len(world.sent) == 10
    assert not started.is_done()
    for number in range(10):
        world.answer(number)
    assert started.is_done()
    assert [round(question.intended, 3) for question in world.over] == [round(n / 10, 3) for n in range(1, 11)]


def test_a_client_that_was_away_sends_what_is_due_and_counts_from_when_it_was_due() -> None:
    world = World(takes_s=0.0)
    world.start(OpenLoop(even([Phase(10.0, 1.05)])))
    world.loop.advance(1.1)  # one step: nothing ran in between
    world.advance(0.1)
    assert [round(question.latency, 2) for question in world.over][:3] == pytest.approx([1.0, 0.9, 0.8], abs=0.021)


def test_a_closed_loop_keeps_so_many_under_way_and_waits_for_the_last() -> None:
    world = World(takes_s=0.1)
    started = world.start(ClosedLoop(3, seconds=1.0))
    assert len(world.sent) == 3
    world.advance(1.2)
    assert started.is_done()
    assert len(world.sent) == len(world.over) == 30


def test_a_closed_loop_ends_after_so_many_requests() -> None:
    world = World(takes_s=0.1)
    started = world.start(ClosedLoop(3, requests=7))
    world.advance(1.0)
    assert started.is_done()
    assert len(world.sent) == 7


def test_shared_out_each_client_sends_its_equal_part() -> None:
    world = World(Manners(1.0))
    started = world.start(ClosedLoop(2, requests=6, is_shared_out=True))
    for number in (0, 2, 3):  # one client is fast; the other one waits for its first answer
        world.answer(number)
    assert len(world.sent) == 4
    for _ in range(3):
        world.advance(1.1)
    assert started.is_done()
    assert len(world.sent) == 6


def test_users_come_one_by_one_and_think_between_answers() -> None:
    world = World(takes_s=0.1)
    world.start(ClosedLoop(50, seconds=60.0, think_s=(2.0, 5.0)))
    world.advance(60.0, step=0.05)
    assert world.count_at(lambda at: at < 0.5) < 15
    # Each cycle takes 3.5 s of thinking on average, and the answer.
    assert len(world.sent) == pytest.approx(50 * 60 / 3.65, rel=0.06)


def test_who_lost_a_connection_takes_a_breath() -> None:
    world = World()
    world.start(ClosedLoop(1, seconds=1.0))
    world.sent[0][1].lost("connection refused")
    assert len(world.sent) == 1
    world.advance(BREATH_S * 2, step=BREATH_S / 2)
    assert len(world.sent) == 2
