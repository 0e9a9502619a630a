"""What listeners are told: an answer names its batch, and what is less than the full answer says why."""

from __future__ import annotations

import pytest
from tests.requests.gateway import MARGIN_S, WARM_UP_S, World

from timebound.errors import Refusal, RequestError
from timebound.events import BatchFinished, BatchLost, BatchStarted
from timebound.types import Outcome, Result


def result(world: World, name: str) -> Result:
    return next(found for who, found in world.delivered if who == name and isinstance(found, Result))


def error(world: World, name: str) -> RequestError:
    return next(found for who, found in world.delivered if who == name and isinstance(found, RequestError))


def test_start_end_and_every_answer_of_a_batch_name_the_same_run() -> None:
    world = World()
    world.up("a")
    world.submit("one", "two")
    world.loop.run_due()
    world.loop.advance(0.25)
    world.answer("a")
    started, finished = world.seen
    assert (type(started), type(finished)) == (BatchStarted, BatchFinished)
    run = started.run
    assert run is not None
    assert (run.slot, run.size, run.started, run.reason) == ("a", 2, 100.0, started.reason)
    assert (finished.seconds, finished.predicted_s) == (0.25, run.predicted_s)
    assert run.latest_end == pytest.approx(101.0 - MARGIN_S)
    assert finished.run is result(world, "one").run is result(world, "two").run is run


def test_each_batch_has_a_number_of_its_own_also_the_one_that_was_lost() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.down("a")
    world.up("b")
    world.loop.run_due()
    world.answer("b")
    lost = next(event for event in world.seen if isinstance(event, BatchLost))
    last = result(world, "one").run
    assert lost.run is not None
    assert last is not None
    assert (lost.run.slot, last.slot) == ("a", "b")
    assert lost.run.id != last.id


def test_a_full_answer_has_no_reason_and_a_partial_one_says_why() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a", members=1)
    world.loop.advance(1.0)
    assert (world.qualities()["one"], result(world, "one").reason) == ("partial", "guard")
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    assert (world.qualities()["one"], result(world, "one").reason) == ("full", "")


def test_a_fallback_says_why_it_is_one() -> None:
    world = World(has_fallback=True)
    world.learn_speed()
    world.submit("hopeless", timeout_s=WARM_UP_S / 10)
    world.loop.run_due()
    world.asked[0][2](Outcome(b"instead"))
    assert result(world, "hopeless").reason == "deadline_unreachable"


def test_a_refusal_says_how_long_the_answer_would_have_taken() -> None:
    world = World()
    world.learn_speed()
    world.submit("hopeless", timeout_s=WARM_UP_S / 10)
    refusal = error(world, "hopeless")
    assert isinstance(refusal, Refusal)
    assert refusal.predicted_s is not None
    assert WARM_UP_S / 10 < refusal.predicted_s < 10 * WARM_UP_S
