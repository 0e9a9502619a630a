from __future__ import annotations

import pytest
from benchmarks.tools.openloop import Heedful
from tests.lab.load.world import OK, World

from timebound.lab.load.attempts import End, Exchange, Manners, Question
from timebound.lab.load.client import Reply


def ask(world: World, exchange: Exchange | None = None, intended: float = 0.0) -> None:
    world.asker.ask(exchange or world.take(), intended, world.over.append)


def last(world: World) -> Question:
    return world.over[-1]


def test_a_latency_counts_from_the_moment_the_request_should_have_been_sent() -> None:
    world = World()
    world.advance(2.0)
    ask(world, intended=1.5)
    world.advance(0.25)
    world.answer(0)
    assert last(world).latency == pytest.approx(0.75)
    assert last(world).last.begun == last(world).last.sent == pytest.approx(2.0)


def test_an_attempt_without_an_answer_is_abandoned_and_sent_again_with_the_same_bytes() -> None:
    world = World(Manners(1.0, resends=2))
    ask(world)
    world.advance(2.5)
    assert world.times() == pytest.approx([0.0, 1.0, 2.0], abs=0.02)
    assert len({call.request for _, call in world.sent}) == 1
    assert len(world.abandoned) == 2
    world.answer(2)
    assert [attempt.end for attempt in last(world).attempts] == [End.TIMED_OUT, End.TIMED_OUT, End.ANSWERED]
    assert last(world).latency == pytest.approx(2.5, abs=0.02)


def test_after_the_last_attempt_the_question_is_over_without_an_answer() -> None:
    world = World(Manners(1.0, resends=2))
    ask(world)
    world.advance(5.0)
    assert len(world.sent) == 3
    assert last(world).last.end is not End.ANSWERED
    assert world.asker.under_way == 0


def test_each_attempt_times_out_at_its_own_time() -> None:
    world = World(Manners(1.0))
    ask(world)
    world.advance(0.5)
    ask(world, intended=0.5)
    world.advance(0.7)
    assert len(world.over) == 1
    world.answer(1)
    assert [question.last.end for question in world.over] == [End.TIMED_OUT, End.ANSWERED]


def test_an_answer_that_is_found_after_the_time_is_late() -> None:
    world = World(Manners(1.0))
    ask(world)
    world.clock.advance(1.5)  # the client was busy: its timer has not rung
    world.answer(0)
    assert last(world).last.end is End.TIMED_OUT


def test_an_error_status_ends_a_question_unless_refusals_are_sent_again() -> None:
    refusal = Reply(429, [(b"Retry-After", b"2")], b"")
    world = World(Manners(1.0, resends=2))
    ask(world)
    world.answer(0, refusal)
    assert (last(world).last.end, last(world).last.status) == (End.REFUSED, 429)

    heedful = World(Manners(1.0, resends=2), kind=Heedful)
    ask(heedful)
    heedful.answer(0, refusal)
    assert len(heedful.sent) == 1
    assert heedful.asker.under_way == 1
    heedful.advance(0.06)
    assert len(heedful.sent) == 2
    heedful.answer(1)
    assert last(heedful).attempts[0].asked_to_wait
    assert last(heedful).last.end is End.ANSWERED


def test_a_wrong_answer_is_an_answer_that_is_not_right() -> None:
    world = World()
    ask(world, Exchange(b"", lambda reply: reply.body == b"yes"))
    world.answer(0, Reply(200, [], b"no"))
    assert last(world).last.end is End.ANSWERED
    assert not last(world).last.is_right


def test_what_the_server_says_of_its_answer_is_kept() -> None:
    headers = [(b"Timebound-Quality", b"partial"), (b"timebound-source", b"joined"), (b"timebound-members", b"2/3")]
    world = World()
    ask(world)
    world.answer(0, Reply(200, headers, b""))
    attempt = last(world).last
    assert (attempt.quality, attempt.source, attempt.members) == ("partial", "joined", 2)


def test_a_lost_attempt_says_why() -> None:
    world = World()
    ask(world)
    world.sent[0][1].lost("connection reset")
    assert (last(world).last.end, last(world).last.why) == (End.LOST, "connection reset")


def test_what_is_under_way_when_it_is_stopped_is_counted_and_never_heard_of() -> None:
    world = World()
    ask(world)
    ask(world)
    assert world.asker.stop() == 2
    world.answer(0, OK)
    world.advance(20.0, step=1.0)
    assert world.over == []
