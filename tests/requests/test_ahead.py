"""Requests whose model fetches something before they wait for a slot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.requests.gateway import World

from timebound.errors import CrashesWorker, DeadlineMissed, RequestError
from timebound.types import ModelInfo, Outcome
from timebound.workers.failures import failure

GONE = Outcome(b"", code="process_gone")
ENDED, BESIDE = Outcome(b"", code="ended_process"), Outcome(b"", code="gone_beside")


class Fetching(World):
    """A world whose model fetches."""

    def __init__(self, **info: Any) -> None:
        super().__init__(has_fetch=True, **info)
        self.up("a")

    def fetched(self, outcome: Outcome, place: int = -1) -> None:
        self.away[place][1](outcome, 1.0)
        self.loop.run_due()


def test_what_was_fetched_goes_to_the_slot() -> None:
    world = Fetching()
    world.submit("x")
    world.loop.run_due()
    assert world.sent == []
    world.fetched(Outcome(b"x and its page"))
    assert world.batch() == ["x and its page"]
    world.answer("a")
    assert world.answered() == ["x"]


def test_an_error_of_the_items_own_is_final_also_with_a_fallback() -> None:
    world = Fetching(has_fallback=True)
    world.submit("x")
    world.fetched(failure("bad_input", "no such page", "url"))
    ((_, error),) = world.delivered
    assert isinstance(error, RequestError)
    assert (error.code, error.field, error.detail) == ("bad_input", "url", "no such page")


@pytest.mark.parametrize("code", ["model_failed", "deadline_missed"])
def test_where_the_world_fails_the_fallback_is_given(code: str) -> None:
    world = Fetching(has_fallback=True)
    world.submit("x")
    world.fetched(failure(code, "nobody there"))
    (_, body, done) = world.asked.pop()
    assert body == b"x"
    done(Outcome(b"fallback"))
    assert world.qualities() == {"x": "fallback"}


def test_the_deadline_ends_it() -> None:
    world = Fetching()
    world.submit("x", timeout_s=0.5)
    world.loop.advance(0.5)
    assert world.errors() == {"x": DeadlineMissed}
    assert world.called_off == [1]
    world.fetched(Outcome(b"too late"))
    assert world.sent == []


def test_it_goes_on_for_who_joined_with_more_time() -> None:
    world = Fetching()
    world.submit("short", key="k", timeout_s=0.3)
    world.submit("long", key="k", timeout_s=0.9)
    assert len(world.away) == 1
    world.loop.advance(0.5)
    assert world.called_off == []
    world.fetched(Outcome(b"page"))
    world.answer("a")
    assert (world.answered(), world.errors()) == (["long"], {"short": DeadlineMissed})


def test_it_is_called_off_when_the_last_client_has_left() -> None:
    world = Fetching()
    world.submit("one", "other", key="k")
    world.dispatcher.gone(world.attempts["one"])
    assert world.called_off == []
    world.dispatcher.gone(world.attempts["other"])
    assert world.called_off == [1]
    world.submit("retry", key="k")
    assert len(world.away) == 2


def test_after_a_loss_it_is_asked_again_and_not_for_ever() -> None:
    world = Fetching()
    world.submit("x")
    world.fetched(GONE)
    world.fetched(GONE)
    assert world.errors() == {}
    world.fetched(GONE)
    assert (world.errors(), len(world.away)) == ({"x": CrashesWorker}, 3)


def test_who_ended_two_processes_is_guilty_and_those_beside_it_are_asked_again_and_again() -> None:
    world = Fetching()
    world.submit("deadly")
    world.submit("beside")
    world.fetched(ENDED, 0)
    world.fetched(BESIDE, 1)
    world.loop.advance(0.4)
    assert [body for body, _ in world.away] == [b"deadly", b"beside", b"beside"], "the others go first"
    world.loop.advance(0.2)
    assert world.errors() == {}
    world.fetched(ENDED, 3)
    assert world.errors() == {"deadly": CrashesWorker}
    for place in (2, -1, -1):
        world.fetched(BESIDE, place)
    world.fetched(Outcome(b"beside and its page"))
    assert world.batch() == ["beside and its page"]
    asked = len(world.away)
    world.submit("deadly")
    assert (len(world.away), len(world.errors())) == (asked, 1), "it is not asked again"


def test_who_is_like_those_that_ended_processes_is_asked_all_the_same() -> None:
    world = Fetching()
    for number in range(6):
        world.submit(f"deadly-{number}")
        while f"deadly-{number}" not in world.errors():
            world.fetched(ENDED)
            world.loop.advance(0.6)
    world.submit("innocent")
    assert (world.away[-1][0], world.errors().get("innocent")) == (b"innocent", None)
    assert len(world.away) == 10, "once three were proven within a minute, one more loss proves the next"


def test_who_was_called_off_before_its_process_ended_is_to_blame_all_the_same() -> None:
    world = Fetching()
    for number in range(2):
        world.submit("deadly")
        world.loop.advance(1.1)
        world.fetched(ENDED, number)
    world.submit("deadly")
    assert len(world.away) == 2
    assert [type(error) for _, error in world.delivered] == [DeadlineMissed, DeadlineMissed, CrashesWorker]


def test_a_class_that_changed_meanwhile_fetches_anew() -> None:
    world = Fetching()
    world.submit("away", "waits", "runs")
    world.fetched(Outcome(b"old page of runs"))
    world.fetched(Outcome(b"old page of waits"), place=1)
    assert world.batch() == ["old page of runs"]
    world.catalogue.update([ModelInfo(name="m", warm_up_s=0.001, has_fetch=True, version="2")], {})
    world.fetched(Outcome(b"old page of away"), place=0)
    assert [body for body, _ in world.away[3:]] == [b"waits", b"away"]
    world.fetched(Outcome(b"new page"), place=3)
    world.answer("a")
    world.loop.run_due()
    assert world.batch() == ["new page"]


def test_too_much_in_memory_is_refused() -> None:
    class Full:
        def reach(self, size: int) -> bool:
            return False

    world = Fetching()
    world.dispatcher.ahead.hold = Full
    world.submit("x")
    world.fetched(Outcome(bytes(20_000)))
    ((_, error),) = world.delivered
    assert isinstance(error, RequestError)
    assert error.code == "memory_full"
