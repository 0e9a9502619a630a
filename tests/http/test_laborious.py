"""Connections that send much of what is no body are read on in turn, whatever becomes of one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.manual_loop import PunctualLoop

from timebound.admission import Held, Peers
from timebound.clock import ManualClock
from timebound.http.bounded import Bounded, Limits, State


class Laborious:
    """A connection that does what a test says when its turn comes."""

    def __init__(self, loop: PunctualLoop, read_on: Callable[[], None]) -> None:
        self.loop, self.read_on, self.transport = loop, read_on, self
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True


@pytest.fixture
def loop() -> PunctualLoop:
    return PunctualLoop(ManualClock(100.0))  # type: ignore[abstract]


@pytest.fixture
def state() -> State:
    limits = Limits(max_body=1, max_header=1, max_connections=1, read_timeout=1.0, write_timeout=1.0)
    return State(limits=limits, held=Held(1), peers=Peers(1), access=None, cors=None)


def wait(state: State, connection: Any) -> None:
    state.wait(cast(Bounded, connection))


def test_a_connection_that_cannot_be_read_on_is_cut_and_the_others_have_their_turn(
    loop: PunctualLoop, state: State
) -> None:
    def fail() -> None:
        raise ValueError("not that")

    seen: list[str] = []
    broken, other = Laborious(loop, fail), Laborious(loop, lambda: seen.append("other"))
    wait(state, broken)
    wait(state, other)
    with pytest.raises(ValueError, match="not that"):
        loop.advance(0.01)
    assert broken.is_cut
    loop.advance(0.01)
    assert (seen, other.is_cut) == (["other"], False)
    wait(state, Laborious(loop, lambda: seen.append("later")))
    loop.advance(0.01)
    assert seen == ["other", "later"]


def test_a_connection_with_more_to_read_goes_behind_the_others(loop: PunctualLoop, state: State) -> None:
    seen: list[str] = []

    def once_more() -> None:
        seen.append("long")
        if seen.count("long") < 3:
            wait(state, long)

    long = Laborious(loop, once_more)
    wait(state, long)
    wait(state, Laborious(loop, lambda: seen.append("short")))
    for _ in range(5):
        loop.advance(0.01)
    assert seen == ["long", "short", "long", "long"]
