"""The loop around the policy: batches go out at once, and every request is answered once."""

from __future__ import annotations

from math import inf
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.manual_loop import Started
from tests.requests.gateway import NO_TIME, WARM_UP_S, World

from timebound.errors import DeadlineMissed, Refusal, RequestError
from timebound.events import BatchLost, BatchStarted
from timebound.requests.models import Models
from timebound.requests.request import Request
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import ModelSpec
from timebound.types import ModelInfo, Outcome, Question, Report, Result, Timing


def test_requests_of_one_turn_of_the_loop_go_in_one_batch() -> None:
    world = World()
    world.up("a")
    world.submit("one", "two")
    assert world.sent == []
    world.loop.run_due()
    assert world.batch() == ["one", "two"]


def test_several_idle_slots_share_what_waits() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one", "two")
    world.loop.run_due()
    assert [slot for slot, *_ in world.sent] == ["a", "b"]


def test_a_lone_request_does_not_wait_for_company() -> None:
    world = World()
    world.up("a")
    world.submit("lone")
    world.loop.run_due()
    assert world.batch() == ["lone"]
    assert world.clock.now() == 100.0


def test_a_request_of_a_later_turn_goes_to_the_next_free_slot() -> None:
    world = World()
    world.up("a", "b")
    for name in ("one", "two"):
        world.submit(name)
        world.loop.run_due()
    assert [slot for slot, *_ in world.sent] == ["a", "b"]


def test_a_slot_that_comes_up_takes_what_waits_at_once() -> None:
    world = World()
    world.submit("one")
    world.loop.run_due()
    assert (world.sent, world.dispatcher.queued(), world.dispatcher.waiting) == ([], 1, 1)
    world.up("a")
    assert world.batch() == ["one"]
    assert world.dispatcher.queued() == 0


def test_a_slot_gets_its_next_batch_before_answers_are_delivered() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.submit("two")
    world.loop.run_due()
    assert len(world.sent) == 1
    sent_by_then: list[int] = []
    world.events.on(BatchStarted, lambda event: sent_by_then.append(len(world.delivered)))
    world.answer("a")
    assert world.batch() == ["two"]
    assert sent_by_then == [0]
    assert world.answered() == ["one"]


def test_somebody_who_cannot_take_an_answer_hurts_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.up("a")

    def refuse(result: object) -> None:
        raise RuntimeError("the future is finished")

    world.dispatcher.submit(Question("bad", "m", b"bad", 100.0, 101.0), refuse)
    world.submit("one", "two")
    world.loop.run_due()
    while world.running:
        world.answer("a")
    assert [name for name, _ in world.delivered] == ["one", "two"]
    assert (world.dispatcher.waiting, len(caplog.records)) == (0, 1)


def test_an_answer_tells_how_it_came_about() -> None:
    world = World()
    world.submit("one")
    world.loop.advance(0.125)
    world.up("a")
    world.loop.advance(0.25)
    world.answer("a", Timing(0.1, 0.2, 0.3))
    ((name, result),) = world.delivered
    assert isinstance(result, Result)
    assert (name, result.outcome.body, result.batch_size) == ("one", b"answer", 1)
    assert (result.members, result.of_members, result.timing) == (1, 1, Timing(0.1, 0.2, 0.3))
    assert result.queue_s == pytest.approx(0.125)


def test_the_moments_of_a_batch_are_told() -> None:
    world = World()
    world.up("a")
    world.submit("one", "two")
    world.loop.run_due()
    world.loop.advance(0.5)
    world.answer("a")
    started, finished = world.seen
    assert (started.model, started.size, started.queued) == ("m", 2, 0)
    assert started.reason
    assert (finished.model, finished.size, finished.seconds) == ("m", 2, 0.5)
    assert finished.predicted_s > 0


def test_what_ran_on_a_dead_slot_is_sent_once_more() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.up("b")
    world.down("a")
    assert [slot for slot, *_ in world.sent] == ["a", "b"]
    world.answer("b")
    assert world.answered() == ["one"]
    assert [type(event) for event in world.seen if isinstance(event, BatchLost)] == [BatchLost]


def test_a_dead_slot_takes_nobody_elses_requests_with_it() -> None:
    world = World()
    world.up("a", "b")
    for name in ("one", "two"):
        world.submit(name)
        world.loop.run_due()
    world.down("a")
    world.answer("b")
    world.answer("b")
    assert world.answered() == ["two", "one"]


def test_what_the_guard_answered_is_not_sent_again_when_its_slot_dies() -> None:
    world = World()
    world.up("a")
    world.submit("late")
    world.loop.run_due()
    world.loop.advance(1.0)
    world.up("b")
    world.down("a")
    assert [slot for slot, *_ in world.sent] == ["a"]
    assert world.errors() == {"late": DeadlineMissed}


def test_a_worker_that_dies_takes_its_free_slots_along() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one")
    world.loop.run_due()
    world.down("a", "b")
    assert len(world.sent) == 1
    world.up("c")
    world.answer("c")
    assert world.answered() == ["one"]


def test_an_idle_slot_that_goes_gets_no_batch() -> None:
    world = World()
    world.up("a")
    world.down("a")
    world.down("never there")
    world.submit("one")
    world.loop.run_due()
    assert world.sent == []


def test_drained_returns_at_once_when_nothing_is_pending() -> None:
    assert Started(World().dispatcher.drained()).is_done()


def test_drained_returns_when_the_last_request_is_answered() -> None:
    world = World()
    world.up("a")
    world.submit("computed")
    world.loop.run_due()
    world.loop.advance(0.5)
    world.submit("queued")
    draining = Started(world.dispatcher.drained())
    world.loop.advance(0.5)
    assert world.errors() == {"computed": DeadlineMissed}
    assert not draining.is_done()
    world.answer("a")
    world.answer("a")
    assert world.answered() == ["queued"]
    assert draining.is_done()


def test_everyone_who_waits_for_the_drain_is_woken() -> None:
    world = World()
    world.submit("one")
    waiting = [Started(world.dispatcher.drained()) for _ in range(2)]
    world.loop.advance(1.0)
    done = [each.is_done() for each in waiting]
    for each in waiting:
        each.close()
    assert done == [True, True]


def test_a_request_that_cannot_be_in_time_is_refused_at_once_with_a_time_to_come_back() -> None:
    world = World()
    world.learn_speed()
    world.submit("hopeless", timeout_s=WARM_UP_S / 10)
    name, refusal = world.delivered[-1]
    assert isinstance(refusal, Refusal)
    assert (name, refusal.code) == ("hopeless", "deadline_unreachable")
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s > 0


def test_a_member_that_is_done_is_given_when_time_runs_out() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.advance(0.2)
    world.answer("a", members=1)
    assert world.decided == [("a", True)]
    world.loop.advance(0.2)
    world.answer("a", members=2)
    world.loop.advance(1.0)
    assert world.qualities() == {"one": "partial"}
    (_, result) = world.delivered[0]
    assert isinstance(result, Result)
    assert world.decided == [("a", True), ("a", True)]  # the guard did not wait for the third member
    assert (result.members, result.of_members) == (2, 3)


def test_an_ensemble_with_time_runs_to_the_end() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    for members in (1, 2):
        world.loop.advance(0.01)
        world.answer("a", members=members)
    world.loop.advance(0.01)
    world.answer("a")
    assert world.decided == [("a", True), ("a", True)]
    assert world.qualities() == {"one": "full"}


def test_an_item_error_after_the_first_member_is_final() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad", "good")
    world.loop.run_due()
    world.loop.advance(0.01)
    outcomes = [Outcome(b"{}", code="bad_input"), Outcome(b"answer")]
    world.dispatcher.report("a", Report(outcomes, Timing(), 1, 2))
    assert [name for name, _ in world.delivered] == ["bad"]
    world.answer("a")
    assert [name for name, _ in world.delivered] == ["bad", "good"]


def test_a_failure_with_nothing_before_it_is_told() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad")
    world.loop.run_due()
    world.dispatcher.report("a", Report([Outcome(b"{}", code="model_failed")], Timing(), 2, 2))
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert result.outcome.code == "model_failed"


def test_nobody_is_asked_between_members_while_there_is_time_for_all_who_wait() -> None:
    world = World(members=3)
    world.up("a", "b")
    world.submit("one", "two", "three")  # more than a model may have at once that has run nothing yet
    world.loop.run_due()
    assert len(world.sent) == 2
    assert all(after > 0.0 for after in world.asks_after_s)


def test_after_a_note_the_batch_ends_as_without_one() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"answer")], Timing(), 1, 3, is_note=True))
    world.loop.advance(0.01)
    world.answer("a", members=2)
    world.loop.advance(0.01)
    world.answer("a")
    assert world.decided == [("a", True)]
    assert world.qualities() == {"one": "full"}


MOVES = ("submit", "retry", "leave", "turn", "wait", "helper")


SLOT_MOVES = tuple(f"{move}_{slot}" for move in ("back", "member", "die", "up") for slot in "ab")


STEPS = st.lists(st.sampled_from(MOVES + SLOT_MOVES))


@given(STEPS, st.booleans(), st.booleans())
def test_every_request_is_delivered_exactly_once_whatever_happens(  # noqa: PLR0912
    steps: list[str], has_fallback: bool, has_size: bool
) -> None:
    world = World(members=3, has_fallback=has_fallback, has_size=has_size)
    up: set[str] = set()
    left: set[str] = set()
    members: dict[str, int] = {}
    for number, step in enumerate(steps):
        match step.split("_"):
            case ["submit"]:
                world.submit(f"r{number}")
            case ["retry"]:
                world.submit(f"r{number}", key="k")
            case ["leave"] if world.attempts:
                name = list(world.attempts)[number % len(world.attempts)]
                if name not in [answered for answered, _ in world.delivered]:
                    left.add(name)
                world.dispatcher.gone(world.attempts[name])
            case ["turn"]:
                world.loop.run_due()
            case ["wait"]:
                world.loop.advance(0.4)
            case ["helper"] if world.asked:
                duty, _, done = world.asked.pop(0)
                done(Outcome(b"cheap") if duty == "fallback" else inf if number % 5 == 0 else 2.0)
            case ["back", slot] if slot in world.running:
                members.pop(slot, None)
                world.answer(slot)
            case ["member", slot] if slot in world.running and members.get(slot, 0) < 2:
                members[slot] = members.get(slot, 0) + 1
                world.answer(slot, members=members[slot])
                if slot not in world.running or world.decided[-1] == (slot, False):
                    members.pop(slot, None)
            case ["die", slot] if slot in up:
                up.remove(slot)
                members.pop(slot, None)
                world.down(slot)
            case ["up", slot] if slot not in up:
                up.add(slot)
                world.up(slot)
    for _ in range(4):  # until the watchdog has looked twice
        world.loop.advance(31.0)
    submitted = [f"r{number}" for number, step in enumerate(steps) if step in ("submit", "retry")]
    assert sorted(name for name, _ in world.delivered) == sorted(set(submitted) - left)
    assert world.dispatcher.waiting == 0
    assert world.loop.timers == 0


def test_votes_go_to_the_items_that_asked() -> None:
    world = World(members=2)
    world.up("a")
    for name, wants_votes in (("one", False), ("two", True)):
        request = Question(name, "m", name.encode(), world.clock.now(), world.clock.now() + 1, wants_votes=wants_votes)
        world.dispatcher.submit(request, world._deliver_to(name))
    world.loop.run_due()
    asked = [cast(Request, ticket).wants_votes for ticket in world.sent[-1][1].tickets]
    outcomes = [Outcome(b"answer") for _ in asked]
    world.dispatcher.report("a", Report(outcomes, NO_TIME, 2, 2, {asked.index(True): "[1]"}))
    votes = {name: result.votes for name, result in world.delivered if isinstance(result, Result)}
    assert votes == {"one": "", "two": "[1]"}


def test_a_partial_answer_keeps_the_votes_it_came_with() -> None:
    world = World(members=3, deadline_s=1.0)
    world.up("a")
    now = world.clock.now()
    world.dispatcher.submit(Question("one", "m", b"one", now, now + 1, wants_votes=True), world._deliver_to("one"))
    world.loop.run_due()
    world.loop.advance(0.1)
    world.dispatcher.report("a", Report([Outcome(b"so far")], NO_TIME, 2, 3, {0: "[1,2]"}))
    world.loop.advance(2)
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert (result.quality, result.members, result.votes) == ("partial", 2, "[1,2]")


def test_nobody_is_accepted_once_it_is_closed_and_who_was_is_answered() -> None:
    world = World()
    world.up("a")
    world.submit("before")
    world.dispatcher.close()
    with pytest.raises(Refusal) as refused:
        world.submit("after")
    assert refused.value.code == "draining"
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["before"]


def test_a_model_that_is_no_longer_served_is_not_asked() -> None:
    world = World()
    world.catalogue.update([ModelInfo(name="other")], {})
    with pytest.raises(RequestError) as refused:
        world.submit("late")
    assert refused.value.code == "unknown_model"


def test_a_batch_that_hangs_is_found_though_predictions_were_far_off() -> None:
    world = World(members=3)
    world.submit("one")
    world.up("a")
    world.submit("two")
    world.up("b")
    world.submit("three")
    world.loop.advance(0.4)  # far more than the warm-up promised
    world.answer("a", members=1)
    world.answer("b")
    world.loop.advance(11.0)
    assert sorted(world.killed) == ["a", "b"]


def test_what_was_learned_of_a_removed_model_is_forgotten() -> None:
    profiles: dict[str, object] = {"old": {}, "m": {}}
    models = Models(Scheduler(0.010), profiles, max_queue=10)
    models.add(ModelInfo(name="old", warm_up_s=0.001))
    models.remove("old", None)
    assert profiles == {"m": {}}


def test_a_profile_counts_for_its_device_engine_and_versions_only() -> None:
    scheduler = Scheduler(0.010)
    scheduler.add_model(ModelSpec("m", 1.0))
    scheduler.observe("m", 1, 1.0, 0.5)
    profile = {**scheduler.profile()["m"], "made_on": "cpu, onnxruntime 1.20.1"}
    for made_on, is_believed in (("cpu, onnxruntime 1.20.1", True), ("cuda, torch 2.11.0", False)):
        other = Scheduler(0.010)
        models = Models(other, {"m": profile}, max_queue=10)
        models.add(ModelInfo(name="m", warm_up_s=0.001, made_on=made_on))
        assert bool(models.learned()) is is_believed
        if is_believed:
            assert models.learned()["m"]["made_on"] == made_on
