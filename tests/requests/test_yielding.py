"""Pieces of an answer: how long they go on when nobody waits, what is kept of them, and how many there may be."""

from __future__ import annotations

import gc

from tests.requests.gateway import World

from timebound.admission import Held
from timebound.errors import ModelFailed, Refusal
from timebound.requests.progress import MOST_BYTES
from timebound.types import Outcome, Part, Result, Source

LARGE = Part("bytes", bytes(MOST_BYTES // 4))


def speaking(*, key: str | None = "k") -> World:
    """One request runs, and its first piece has come."""
    world = World()
    world.up("a")
    world.submit("first", key=key)
    world.loop.run_due()
    say(world)
    return world


def say(world: World, *parts: Part, slot: str = "a") -> None:
    world.dispatcher.pieces(slot, {0: list(parts) or [Part("text", b'"word "')]})


def bodies(world: World) -> dict[str, bytes]:
    return {name: result.outcome.body for name, result in world.delivered if isinstance(result, Result)}


def test_after_its_deadline_an_answer_with_a_key_goes_on_no_longer_and_is_kept_as_the_part_that_it_is() -> None:
    world = speaking()
    world.loop.advance(world.info.deadline_s + 0.1)
    assert (world.qualities(), world.left_off) == ({"first": "partial"}, [])
    say(world)
    assert world.left_off == [("a", [0])]
    assert not world.dispatcher.is_running("m", "k")
    say(world)  # it was on its way
    world.answer("a", outcome=Outcome(b'"cut short"'))
    assert world.kept("k") == "partial"
    world.submit("again", key="k")
    assert (bodies(world)["again"], len(world.sent)) == (b'"word word "', 1)


def test_an_answer_whose_client_has_left_goes_on_until_its_deadline() -> None:
    world = speaking()
    world.dispatcher.gone(world.attempts["first"])
    say(world)
    assert world.left_off == []
    world.loop.advance(world.info.deadline_s + 0.1)
    say(world)
    assert world.left_off == [("a", [0])]
    assert len(world.dispatcher.unwaited) == 0
    world.answer("a")
    assert world.kept("k") == "partial"


def test_an_answer_goes_on_for_a_retry_that_came_before_it_was_ended() -> None:
    world = speaking()
    world.loop.advance(world.info.deadline_s + 0.1)
    world.submit("again", key="k")
    say(world)
    assert world.left_off == []
    world.answer("a")
    assert (world.qualities()["again"], world.kept("k")) == ("full", "full")


def test_a_request_that_has_the_key_after_its_answer_was_ended_is_never_given_what_was_cut_short() -> None:
    world = speaking()
    world.loop.advance(world.info.deadline_s + 0.1)
    say(world)
    world.submit("again", key="k")
    world.answer("a", outcome=Outcome(b'"cut short"'))
    assert [(result.quality, result.source) for _, result in world.delivered if isinstance(result, Result)] == [
        ("partial", Source.COMPUTED),
        ("partial", Source.STORED),
    ]


def test_more_pieces_than_are_kept_are_an_error_and_nothing_is_kept_of_them() -> None:
    for key in ("k", None):
        world = speaking(key=key)
        say(world, *[LARGE] * 3)
        assert (world.errors(), world.left_off) == ({}, [])
        say(world, LARGE)
        assert (world.errors(), world.left_off) == ({"first": ModelFailed}, [("a", [0])])
        assert world.dispatcher.waiting == 0
        world.answer("a")
        world.submit("again", key=key)
        world.loop.run_due()
        assert len(world.sent) == 2


def test_more_pieces_than_are_kept_end_an_answer_that_nobody_waits_for() -> None:
    world = speaking()
    world.dispatcher.gone(world.attempts["first"])
    say(world, *[LARGE] * 4)
    assert (world.left_off, world.dispatcher.is_running("m", "k")) == ([("a", [0])], False)


def test_very_many_small_pieces_are_too_many_as_well() -> None:
    world = speaking()
    small = [Part("text", b'"a"')] * 100_000
    for _ in range(10):
        say(world, *small)
    assert world.errors() == {"first": ModelFailed}


def test_pieces_that_come_again_after_a_loss_count_once() -> None:
    world = speaking()
    say(world, *[LARGE] * 3)
    world.down("a")
    world.up("b")
    world.loop.run_due()
    say(world, slot="b")
    say(world, *[LARGE] * 3, slot="b")
    assert (world.errors(), world.left_off) == ({}, [])
    world.answer("b")
    assert world.qualities() == {"first": "full"}


PIECE = Part("bytes", bytes(20_000))


def speaking_into(held: Held) -> World:
    """A request with a key is in work, and its pieces count there."""
    world = World()
    world.dispatcher.ahead.hold = held.hold
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    return world


def test_pieces_count_in_the_memory_of_the_server_until_the_answer_is_given() -> None:
    held = Held(1_000_000)
    world = speaking_into(held)
    say(world, Part("bytes", bytes(10_000)))
    assert held.bytes == 0, "as small as a small body"
    say(world, PIECE, PIECE)
    assert 50_000 <= held.bytes < 52_000
    world.dispatcher.gone(world.attempts["first"])
    assert held.bytes >= 50_000, "a retry may come"
    world.submit("second", key="k")
    world.answer("a", outcome=Outcome(b"whole", media="application/octet-stream"))
    for known in (world.sent, world.attempts, world.delivered, world.seen):
        known.clear()
    gc.collect()
    assert held.bytes == 0


def test_pieces_for_which_there_is_no_room_end_their_answer_with_word_to_come_again() -> None:
    held = Held(50_000)
    world = speaking_into(held)
    say(world, PIECE, PIECE)
    say(world, PIECE)
    (error,) = [error for _, error in world.delivered if isinstance(error, Refusal)]
    assert (error.code, error.retry_after_s) == ("memory_full", 1)
    assert world.left_off == [("a", [0])]
    assert held.bytes == 0


def test_the_joined_answer_counts_beside_its_pieces() -> None:
    held = Held(1_000_000)
    world = speaking_into(held)
    say(world, PIECE, PIECE)
    world.loop.advance(world.info.deadline_s + 0.1)
    assert world.qualities() == {"first": "partial"}
    assert held.bytes >= 80_000
