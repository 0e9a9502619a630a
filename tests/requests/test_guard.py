"""Nobody is answered late: the guard, fallbacks, and what is kept free before deadlines."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from tests.requests.gateway import MARGIN_S, WARM_UP_S, World

from timebound.errors import DeadlineMissed
from timebound.requests import attempts
from timebound.types import Outcome, Report, Result, Timing


def test_the_guard_answers_at_the_deadline_less_the_margin_and_not_before() -> None:
    world = World()
    world.submit("waits")
    world.loop.advance(1.0 - MARGIN_S - 0.001)
    assert world.delivered == []
    world.loop.advance(0.001)
    assert world.errors() == {"waits": DeadlineMissed}
    assert world.clock.now() == pytest.approx(101.0 - MARGIN_S)


def test_the_guard_is_not_early_even_where_timers_are() -> None:
    world = World(early_s=0.001)
    world.submit("waits")
    world.loop.advance(1.0 - MARGIN_S - 0.0005)
    assert world.delivered == []
    world.loop.advance(0.0005)
    assert world.errors() == {"waits": DeadlineMissed}


def test_the_guard_tells_where_the_time_went() -> None:
    world = World()
    world.up("a")
    world.submit("computed")
    world.loop.run_due()
    world.submit("queued")
    world.loop.advance(1.0)
    said = {name: str(error) for name, error in world.delivered}
    assert said == {
        "computed": "the deadline came while it was computed",
        "queued": "the deadline came in the queue",
    }


def test_who_is_given_up_in_a_batch_is_told_with_that_batch_and_who_waits_with_none() -> None:
    world = World()
    world.up("a")
    world.submit("computed")
    world.loop.run_due()
    world.submit("queued")
    world.loop.advance(1.0)
    runs = {name: error.run for name, error in world.delivered if isinstance(error, DeadlineMissed)}
    assert runs["queued"] is None
    assert (runs["computed"].slot, runs["computed"].size) == ("a", 1)


def test_a_hundredth_of_a_long_limit_is_kept_free() -> None:
    world = World()
    world.submit("one", timeout_s=1.5)
    world.loop.advance(1.484)
    assert world.errors() == {}
    world.loop.advance(0.002)
    assert world.errors() == {"one": DeadlineMissed}


def test_no_more_than_a_tenth_of_a_short_limit_is_kept_free() -> None:
    world = World(deadline_s=MARGIN_S / 2)
    world.submit("short")
    world.loop.advance(0.89 * MARGIN_S / 2)
    assert world.delivered == []
    world.loop.advance(0.02 * MARGIN_S / 2)
    assert world.errors() == {"short": DeadlineMissed}


def test_a_batch_that_comes_back_after_the_guard_is_dropped_silently() -> None:
    world = World()
    world.up("a")
    world.submit("late")
    world.loop.run_due()
    world.loop.advance(2.0)
    world.answer("a")
    assert [name for name, _ in world.delivered] == ["late"]
    world.submit("next")
    world.loop.run_due()
    assert world.batch() == ["next"]


def test_a_request_answered_by_the_guard_in_the_queue_is_never_sent() -> None:
    world = World()
    world.submit("late")
    world.loop.advance(1.0)
    world.up("a")
    assert (world.sent, world.dispatcher.queued(), world.dispatcher.waiting) == ([], 0, 0)


def test_an_answered_request_leaves_no_timer_behind() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.loop.advance(31.0)  # the watchdog's only look
    assert world.loop.timers == 0


def test_an_answered_request_leaves_no_garbage_behind() -> None:
    world = World()
    world.up("a")
    gc.collect()
    for name in ("one", "two"):
        world.submit(name, timeout_s=50.0)
        world.loop.run_due()
        world.answer("a")
    world.sent.clear()
    world.attempts.clear()
    assert gc.collect() == 0


def test_guards_of_answered_requests_do_not_pile_up_until_their_deadlines() -> None:
    world, made_there = World(), [tracemalloc.Filter(inclusive=True, filename_pattern=attempts.__file__)]
    world.up("a")
    tracemalloc.start()
    for number in range(5_000):
        world.submit(f"r{number}", timeout_s=50.0)
        world.loop.run_due()
        world.answer("a")
        for kept in (world.sent, world.attempts, world.delivered):
            kept.clear()
    found = tracemalloc.take_snapshot().filter_traces(made_there).statistics("filename")
    tracemalloc.stop()
    assert sum(each.size for each in found) < 200_000  # a guard takes some 120 bytes


def test_a_note_is_what_the_guard_gives_when_the_next_member_stalls() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"answer")], Timing(), 1, 3, is_note=True))
    assert world.decided == []  # nobody waits for a decision
    world.loop.advance(1.0)
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert (str(result.quality), result.members) == ("partial", 1)


def test_a_fallback_goes_out_before_the_deadline() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - 4 * MARGIN_S)
    assert world.asked == []
    world.loop.advance(2 * MARGIN_S)
    ((duty, body, done),) = world.asked
    assert (duty, body) == ("fallback", b"one")
    done(Outcome(b"cheap"))
    assert world.qualities() == {"one": "fallback"}


def test_a_fallback_has_time_for_its_way_also_where_the_limit_is_short() -> None:
    world = World(has_fallback=True)
    world.submit("one", timeout_s=0.004)
    world.loop.advance(0.0015)
    assert world.asked == []
    world.loop.advance(0.0002)
    assert [duty for duty, _, _ in world.asked] == ["fallback"]


def test_without_an_answer_from_the_fallback_the_guard_still_answers_in_time() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - MARGIN_S)
    world.loop.advance(MARGIN_S - 0.001)
    assert world.errors() == {"one": DeadlineMissed}
    world.asked[0][2](Outcome(b"too late"))
    assert len(world.delivered) == 1


def test_a_fallback_that_fails_becomes_a_missed_deadline() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - MARGIN_S)
    world.asked[0][2](None)
    assert world.errors() == {"one": DeadlineMissed}


def test_a_hopeless_request_gets_its_fallback_at_once() -> None:
    world = World(has_fallback=True)
    world.learn_speed()
    world.submit("deadline_unreachable", timeout_s=WARM_UP_S / 10)
    world.asked[0][2](Outcome(b"cheap"))
    assert world.qualities()["deadline_unreachable"] == "fallback"
    assert world.batch() == ["first"]


def test_each_attempt_is_answered_by_its_own_deadline() -> None:
    world = World()
    world.submit("first", key="k")
    world.loop.advance(0.5)
    world.submit("again", key="k")
    world.loop.advance(0.5)
    assert world.errors() == {"first": DeadlineMissed}
    world.up("a")
    world.answer("a")
    assert world.answered() == ["again"]


def test_a_short_limit_is_not_refused_for_the_margins_sake() -> None:
    world = World()
    world.learn_speed()
    world.submit("short", timeout_s=4 * WARM_UP_S)
    world.loop.run_due()
    assert world.batch() == ["short"]


def test_one_pause_is_one_accident_however_many_guards_it_hits() -> None:
    world = World()
    for number in range(200):
        world.submit(f"r{number}")
    world.loop.pause(3.0)
    assert len(world.errors()) == 200
    world.loop.advance(30.0)
    world.submit("later")  # by then the pause is forgotten
    assert world.dispatcher.margin_s == MARGIN_S


def test_a_stall_of_the_process_is_expected_again_also_for_those_who_wait_already() -> None:
    world = World()
    world.submit("waits")
    world.loop.advance(0.5)
    world.loop.pause(0.065)  # the loop stands still for 65 ms, 45 of them past its pulse
    assert world.dispatcher.margin_s == pytest.approx(0.080, abs=0.003)
    world.loop.advance(0.37)  # deadline less 70 ms: the stall is two fifths of a half-life old
    assert world.errors() == {"waits": DeadlineMissed}


def test_more_is_kept_free_while_processes_start() -> None:
    world = World()
    world.submit("waits")
    world.dispatcher.strain(is_on=True)
    assert world.dispatcher.margin_s == 0.030
    world.loop.advance(0.971)
    assert world.errors() == {"waits": DeadlineMissed}
    world.dispatcher.strain(is_on=False)
    assert world.dispatcher.margin_s == MARGIN_S


def test_guards_set_early_for_a_strain_that_is_over_wait_for_their_time() -> None:
    world = World()
    world.dispatcher.strain(is_on=True)
    world.submit("waits")
    world.dispatcher.strain(is_on=False)
    world.loop.advance(0.980)
    assert world.delivered == []
    world.loop.advance(0.011)
    assert world.errors() == {"waits": DeadlineMissed}


def test_no_timer_is_left_when_nobody_waits() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.loop.advance(60.0)
    assert world.loop.timers == 0
