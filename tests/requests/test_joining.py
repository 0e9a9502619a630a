"""Attempts with one key, what is kept for them, and clients that leave."""

from __future__ import annotations

from math import inf

import pytest
from tests.requests.gateway import World

from timebound.clock import ManualClock
from timebound.errors import BadInput, DeadlineMissed, KeyReused
from timebound.events import Degraded
from timebound.requests.identity import Identity, check_key
from timebound.store.base import JOINED, OWNER, UNAVAILABLE, Claim, Key, Kind, Settle, Stored
from timebound.store.memory import Memory
from timebound.types import UNFINISHED, ModelInfo, Outcome, Report, Result, Source, Timing


def test_a_member_that_fails_leaves_what_the_members_before_it_said() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad", "good")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.answer("a", members=1)
    world.dispatcher.report("a", Report([Outcome(b"{}", code="model_failed"), Outcome(b"answer")], Timing(), 2, 2))
    assert world.qualities() == {"bad": "partial", "good": "full"}
    reasons = [event.reason for event in world.seen if isinstance(event, Degraded)]
    assert reasons == ["member_failed"]


def report_unfinished(world: World, *, timeout_s: float) -> None:
    """The first of two members is done, and `finish` could do nothing with what it said."""
    world.up("a")
    for turn in range(6):  # so that the scheduler knows of the second member that it is slow
        world.submit(f"before {turn}")
        world.loop.run_due()
        world.loop.advance(0.01)
        world.answer("a", members=1)
        world.loop.advance(0.3)
        world.answer("a")
    world.delivered.clear()
    world.submit("odd", timeout_s=timeout_s)
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"{}", code=UNFINISHED)], Timing(), 1, 2))


def test_what_fewer_members_make_no_answer_of_waits_for_the_others() -> None:
    world = World(members=2)
    report_unfinished(world, timeout_s=1.0)
    assert (world.decided[-1], world.delivered) == (("a", True), [])
    world.answer("a")
    assert world.qualities() == {"odd": "full"}


@pytest.mark.parametrize("has_fallback", [True, False])
def test_where_no_more_members_run_what_is_unfinished_gets_its_fallback_or_its_error(has_fallback: bool) -> None:
    world = World(members=2, has_fallback=has_fallback)
    report_unfinished(world, timeout_s=0.2)
    assert world.decided[-1] == ("a", False)
    for _, _, done in world.asked:
        done(Outcome(b"cheap"))
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert (result.quality, result.outcome.code) == (("fallback", "") if has_fallback else ("partial", "model_failed"))
    told = [(event.count, event.quality) for event in world.seen if isinstance(event, Degraded)]
    assert told == [(1, "fallback")] * has_fallback


def test_what_is_unfinished_gets_what_the_members_before_said() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("odd")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"first")], Timing(), 1, 3))
    world.loop.advance(0.7)
    world.dispatcher.report("a", Report([Outcome(b"{}", code=UNFINISHED)], Timing(), 2, 3))
    assert [(name, result.outcome.body) for name, result in world.delivered if isinstance(result, Result)] == [
        ("odd", b"first")
    ]


def test_an_attempt_with_the_same_key_joins_and_both_are_answered_once() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.submit("again", key="k")
    world.loop.run_due()
    assert len(world.sent) == 1
    world.answer("a")
    sources = {name: result.source for name, result in world.delivered if isinstance(result, Result)}
    assert sources == {"first": Source.COMPUTED, "again": Source.JOINED}


def test_the_same_key_with_another_body_is_refused_while_the_first_is_in_work() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one", key="k", body_of_key=None)
    world.loop.run_due()
    with pytest.raises(KeyReused):
        world.submit("other", key="k", body_of_key=None)
    world.answer("a")
    assert world.answered() == ["one"]


def test_the_same_key_with_another_body_is_refused_after_the_answer() -> None:
    world = World()
    world.up("a")
    world.submit("one", key="k", body_of_key=None)
    world.loop.run_due()
    world.answer("a")
    world.submit("other", key="k", body_of_key=None)
    assert world.errors() == {"other": KeyReused}


def test_the_same_key_is_answered_from_the_store_after_its_answer() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.answer("a")
    world.submit("later", key="k")
    assert world.answered() == ["first", "later"]
    assert [result.source for _, result in world.delivered if isinstance(result, Result)] == ["computed", "stored"]
    assert len(world.sent) == 1


def test_a_result_that_nobody_waited_for_any_more_is_kept_for_the_retry() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.loop.advance(world.info.deadline_s)
    assert world.errors() == {"first": DeadlineMissed}
    world.answer("a")
    world.submit("again", key="k")
    assert world.answered() == ["again"]
    assert len(world.sent) == 1


def test_the_full_answer_is_kept_though_the_first_client_got_a_partial_one() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.answer("a", members=1)
    world.loop.advance(world.info.deadline_s)
    assert world.qualities() == {"first": "partial"}
    world.answer("a")  # whoever waits elsewhere gets this one, not the first member's
    assert world.kept("k") == "full"


def test_a_failed_item_is_computed_again_by_its_retry() -> None:
    world = World()
    world.up("a")
    for name in ("first", "again"):
        world.submit(name, key="k")
        world.loop.run_due()
        world.answer("a", outcome=Outcome(b"{}", code="model_failed"))
    assert len(world.sent) == 2


def test_a_fallback_is_not_kept() -> None:
    world = World(has_fallback=True)
    world.submit("first", key="k")  # no slot is up
    world.loop.advance(world.info.deadline_s - 0.03)
    world.asked[0][2](Outcome(b"cheap"))
    world.up("a")
    world.submit("again", key="k")
    world.loop.run_due()
    world.answer("a")
    results = [result for _, result in world.delivered if isinstance(result, Result)]
    assert [result.quality for result in results] == ["fallback", "full"]


class Elsewhere(Memory):
    """A store in which another server owns every key until `settle` is called."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        self.settle = settle
        settle(JOINED)


def test_what_another_server_computes_is_waited_for_until_the_deadline() -> None:
    world = World(store=Elsewhere(1_000_000, ManualClock()))
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    assert not world.sent
    world.loop.advance(world.info.deadline_s)
    assert world.errors() == {"first": DeadlineMissed}


def test_what_another_server_computed_is_given_to_everyone_who_waits() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.up("a")
    world.submit("first", "second", key="k")
    store.settle(Claim(Kind.RESULT, Stored(b"same", Result(Outcome(b"theirs"), source=Source.JOINED), 0.0)))
    assert world.answered() == ["first", "second"]
    assert not world.sent
    assert world.dispatcher.waiting == 0


def test_what_another_server_gave_up_is_computed_here() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.up("a")
    world.submit("first", key="k")
    store.settle(UNAVAILABLE)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["first"]


def test_a_claim_is_let_go_if_everybody_left_meanwhile() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.submit("first", key="k")
    world.dispatcher.gone(world.attempts["first"])
    let_go: list[Key] = []
    store.abandon = let_go.append  # type: ignore[method-assign, assignment]
    store.settle(OWNER)
    assert let_go == [("m", "k")]


def test_a_request_without_a_key_is_dropped_when_its_client_leaves() -> None:
    world = World()
    world.submit("gone")
    world.dispatcher.gone(world.attempts["gone"])
    world.up("a")
    world.loop.advance(2.0)
    assert (world.sent, world.delivered, world.dispatcher.waiting) == ([], [], 0)


def test_a_request_with_a_key_is_kept_for_a_retry_when_its_client_leaves() -> None:
    world = World()
    world.up("a")
    world.submit("gone", key="k")
    world.loop.run_due()
    world.dispatcher.gone(world.attempts["gone"])
    world.submit("retry", key="k")
    world.answer("a")
    assert world.answered() == ["retry"]
    assert len(world.sent) == 1


def test_a_client_that_leaves_after_its_answer_changes_nothing() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.dispatcher.gone(world.attempts["one"])
    assert world.dispatcher.waiting == 0


def test_a_size_of_the_users_own_is_asked_for_before_the_request_is_queued() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("long")
    world.loop.run_due()
    assert world.sent == []
    ((duty, _, done),) = world.asked
    assert duty == "size"
    done(40.0)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 40.0


def test_a_size_that_cannot_be_told_counts_as_one() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("odd")
    world.asked[0][2](None)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 1.0


def test_a_request_of_infinite_size_gets_its_fallback_at_once_and_no_slot() -> None:
    world = World(has_size=True, has_fallback=True)
    world.up("a")
    world.submit("endless", key="k")
    world.submit("again", key="k")
    world.asked[0][2](inf)
    world.loop.run_due()
    assert [duty for duty, _, _ in world.asked] == ["size", "fallback", "fallback"]
    world.asked[1][2](Outcome(b"cheap"))
    world.asked[2][2](Outcome(b"cheap"))
    assert world.answered() == ["endless", "again"]
    # Each had a fallback of its own computed.
    assert [result.source for _, result in world.delivered if isinstance(result, Result)] == ["computed", "computed"]
    assert world.sent == []
    assert world.dispatcher.waiting == 0


def test_a_request_of_infinite_size_without_a_fallback_is_refused_as_too_long() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("endless")
    world.asked[0][2](inf)
    world.loop.run_due()
    (error,) = (result for name, result in world.delivered if name == "endless")
    assert isinstance(error, BadInput)
    assert error.code == "too_long"
    assert world.sent == []


def test_a_request_joined_while_its_size_is_asked_for_is_queued_once() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("first", key="k")
    world.submit("again", key="k")
    world.asked[0][2](3.0)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["first", "again"]
    assert len(world.sent) == 1


def test_a_joined_attempt_is_told_so_even_if_the_first_has_left() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.submit("again", key="k")
    world.dispatcher.gone(world.attempts["first"])
    world.answer("a")
    ((name, result),) = world.delivered
    assert isinstance(result, Result)
    assert (name, result.source) == ("again", Source.JOINED)


@pytest.mark.parametrize("size", [float("nan"), -1.0, 1e300, -inf])
def test_a_size_beyond_reason_counts_as_one(size: float) -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("odd")
    world.asked[0][2](size)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 1.0


def test_a_client_that_leaves_while_its_size_is_asked_for_leaves_nothing_behind() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("gone", key="k")
    world.dispatcher.gone(world.attempts["gone"])
    world.submit("retry", key="k")
    for _, _, done in world.asked:
        done(2.0)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["retry"]


def _crowd(world: World, count: int) -> None:
    world.submit(*(f"other{number}" for number in range(count)))


def test_a_second_attempt_beside_one_that_waits_does_not_demote_it() -> None:
    world = World(max_batch=1)
    world.learn_speed()
    world.submit("busy")
    world.loop.run_due()
    world.submit("original", key="k", timeout_s=0.5)
    world.submit("hedge", key="k", timeout_s=0.9)
    _crowd(world, 3)
    world.answer("a")
    world.loop.run_due()
    assert world.batch() == ["same"], "the first deadline first, and no retry"
    world.answer("a")
    assert set(world.answered()) >= {"original", "hedge"}


def test_an_attempt_with_too_short_a_limit_fails_alone() -> None:
    world = World(max_batch=1)
    world.learn_speed()
    world.submit("busy")
    world.loop.run_due()
    world.submit("original", key="k", timeout_s=0.9)
    world.submit("hasty", key="k", timeout_s=0.02)
    world.loop.advance(0.05)
    assert set(world.errors()) == {"hasty"}
    world.answer("a")
    world.loop.run_due()
    world.answer("a")
    assert "original" in world.answered()


def test_a_hedge_of_a_running_request_takes_nothing_from_it() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("original", key="k", timeout_s=1.0)
    world.loop.run_due()
    world.submit("hasty", key="k", timeout_s=0.1)
    world.loop.advance(0.05)
    world.answer("a", members=1)
    assert world.decided[-1] == ("a", True)
    world.loop.advance(0.06)
    assert world.qualities() == {"hasty": "partial"}
    world.answer("a")
    assert world.qualities() == {"hasty": "partial", "original": "full"}


def test_a_retry_of_a_request_whose_client_has_left_ranks_behind() -> None:
    world = World(max_batch=1)
    world.learn_speed()
    world.submit("busy")
    world.loop.run_due()
    world.submit("left", key="k", timeout_s=0.5)
    world.dispatcher.gone(world.attempts["left"])
    world.submit("retry", key="k", timeout_s=0.5)
    world.submit("other", timeout_s=0.9)
    world.answer("a")
    world.loop.run_due()
    assert world.batch() == ["other"]


def test_keys_of_clients_and_those_the_server_makes_can_never_meet() -> None:
    by_content = Identity(ModelInfo(name="m", cache="content"))
    of_version = Identity(ModelInfo(name="m", version="2"), "2")
    made = [by_content.of(None, b"{}")[0], of_version.of("k", b"{}")[0]]
    for key in made:
        with pytest.raises(BadInput):
            check_key(key)
    for key in ("k", "content:1:00", "@2/k", "shop:k"):
        check_key(key)
        assert Identity(ModelInfo(name="m")).of(key, b"{}")[0] not in made


def learn(world: World, seconds: float) -> None:
    world.up("a")
    for number in range(8):
        world.submit(f"known{number}", timeout_s=50.0)
        world.loop.run_due()
        for _, _, done in world.asked:
            done(1.0)
        world.asked.clear()
        world.loop.run_due()
        world.loop.advance(seconds)
        world.answer("a")
    world.delivered.clear()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("names", [("original", "hasty"), ("hasty", "original")])
def test_an_attempt_with_too_short_a_limit_fails_alone_while_the_size_is_asked_for(
    names: tuple[str, str], leaves: bool
) -> None:
    world = World(has_size=True)
    learn(world, 0.1)
    for name in names:
        world.submit(name, key="k", timeout_s=5.0 if name == "original" else 0.05)
    if leaves:
        world.dispatcher.gone(world.attempts["hasty"])
    world.asked[0][2](1.0)
    world.loop.run_due()
    assert "original" not in world.errors()
    world.loop.advance(0.1)
    world.answer("a")
    assert world.answered() == ["original"]


def test_of_three_attempts_each_is_given_up_by_its_own_deadline() -> None:
    world = World(max_batch=1)
    learn(world, 0.1)
    world.submit("busy", timeout_s=5.0)
    world.loop.run_due()
    for name, timeout_s in (("original", 10.0), ("hasty", 0.36), ("hastier", 0.38)):
        world.submit(name, key="k", timeout_s=timeout_s)
    world.loop.advance(0.3)
    world.answer("a")
    world.loop.run_due()
    world.loop.advance(0.1)
    world.answer("a")
    assert "original" in world.answered()


def test_a_fallback_for_one_attempt_leaves_the_others_their_answer() -> None:
    world = World(max_batch=1, has_fallback=True)
    learn(world, 0.1)
    world.submit("busy", timeout_s=5.0)
    world.loop.run_due()
    world.submit("original", key="k", timeout_s=5.0)
    world.submit("hasty", key="k", timeout_s=0.2)
    world.loop.advance(0.15)
    world.answer("a")
    world.loop.run_due()
    assert [duty for duty, _, _ in world.asked] == ["fallback"]
    world.asked[0][2](Outcome(b"cheap"))
    world.loop.advance(0.1)
    world.answer("a")
    assert world.qualities() == {"busy": "full", "hasty": "fallback", "original": "full"}


def test_a_model_removed_while_its_size_is_asked_for_is_told_so() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("late")
    world.catalogue.update([ModelInfo(name="other")], {})
    world.asked[0][2](1.0)
    ((_, error),) = world.delivered
    assert getattr(error, "code", "") == "unknown_model"
