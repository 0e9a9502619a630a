"""The dispatcher and a device that two slots share."""

from __future__ import annotations

from typing import Any

from tests.requests.gateway import World

from timebound.types import Outcome, Report, Timing

LADDER = [1, 2, 4, 8]
STEP_S = [0.020, 0.022, 0.026, 0.034]
READY_S = 0.004  # from being sent to having all that it needs besides the device


def world(**more: Any) -> World:
    return World(device="host", depth=2, max_batch=8, batch_sizes=LADDER, step_s=[STEP_S], **more)


def answer(there: World, slot: str, *, device_s: float, waited_s: float = 0.0) -> None:
    outcomes = [Outcome(b"answer") for _ in there.running.pop(slot)]
    there.dispatcher.report(slot, Report(outcomes, Timing(), 1, 1, device_s=device_s, waited_s=waited_s))


def learned(there: World) -> None:
    """One batch of its own, from which the time before the device is known."""
    there.submit("first")
    there.loop.run_due()
    there.loop.advance(READY_S + STEP_S[0])
    answer(there, there.sent[-1][0], device_s=STEP_S[0])


def test_the_next_batch_is_sent_shortly_before_the_device_is_free() -> None:
    there = world()
    there.up("a1", "a2")
    learned(there)
    there.submit("one")
    there.loop.run_due()
    assert there.batch() == ["one"], "the device is idle: nobody waits"
    began = there.clock.now()
    there.submit("two", "three")
    there.loop.run_due()
    there.loop.advance(0.005)
    there.submit("four", "five")
    there.loop.run_due()
    assert len(there.sent) == 2
    there.loop.advance(0.014)
    assert there.batch() == ["two", "three", "four", "five"]
    assert 0.005 < there.clock.now() - began <= READY_S + STEP_S[0]


def test_slots_of_different_devices_are_used_before_a_second_one_of_the_same() -> None:
    there = world()
    there.up("a1", "a2", "b1", "b2")
    there.submit("one", "two")
    there.loop.run_due()
    assert sorted(str(slot)[0] for slot, *_ in there.sent) == ["a", "b"]


def test_the_loss_of_a_device_takes_its_batches_along() -> None:
    there = world()
    there.up("a1", "a2")
    learned(there)
    there.submit("one")
    there.loop.run_due()
    there.down("a1", "a2")
    there.up("b1", "b2")
    there.loop.run_due()
    assert there.batch() == ["one"]
    assert str(there.sent[-1][0]).startswith("b")


def test_a_first_time_is_no_excuse_where_every_size_ran_at_the_warm_up() -> None:
    there = world()
    there.up("a1", "a2")
    there.submit("one", "two", "three")
    there.loop.run_due()
    assert not there.sent[-1][1].is_first


def test_a_shape_that_no_device_prepared_is_no_hang_and_teaches_nothing_nor_does_what_waits_behind_it() -> None:
    there = world(deadline_s=4.0)
    there.up("a1", "a2")
    learned(there)
    there.submit("strange")
    there.loop.run_due()
    first = there.sent[-1]
    there.dispatcher.unprepared(first[0], is_new=True)
    there.submit("behind")
    there.loop.run_due()
    there.loop.advance(3.5)
    assert there.batch() == ["behind"]
    assert there.killed == []
    answer(there, first[0], device_s=3.5)
    answer(there, there.sent[-1][0], device_s=STEP_S[0], waited_s=3.5)
    there.submit("usual")
    there.loop.run_due()
    assert there.batch() == ["usual"]
    assert there.sent[-1][1].predicted_s < 2 * STEP_S[0]


def test_a_shape_that_no_device_prepared_may_not_take_for_ever() -> None:
    there = world()
    there.up("a1", "a2")
    learned(there)
    there.submit("strange")
    there.loop.run_due()
    there.dispatcher.unprepared(there.sent[-1][0], is_new=True)
    there.loop.advance(9.0)
    assert there.killed == []
    there.loop.advance(2.0)
    assert there.killed == [there.sent[-1][0]]
