"""Connections that send much of what is no body are read on in turn, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from tests.http.test_repeated_heads import CountingParser, Wire
from tests.manual_loop import PunctualLoop

from timebound.admission import Held, Peers
from timebound.clock import Clock, ManualClock
from timebound.events import Events
from timebound.http.bounded import Limits, State
from timebound.http.connection import Connection
from timebound.http.intake import Intake
from timebound.http.laborious import PIECE, TURN_S, Laborious
from timebound.http.routes import Routes

CHUNKS = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 30_000


class Cut:
    """The server's end of a connection without sockets."""

    is_cut = False

    def abort(self) -> None:
        self.is_cut = True


class Slow:
    """A connection that does what a test says when its turn comes."""

    def __init__(self, loop: PunctualLoop, read_on: Callable[[], None]) -> None:
        self.loop, self.read_on, self.end = cast(asyncio.AbstractEventLoop, loop), read_on, Cut()
        self.transport = cast(asyncio.Transport, self.end)


class Ticking(ManualClock):
    """A clock that each look moves on, as if what came before it had taken so long."""

    step_s = 0.0

    def now(self) -> float:
        return self.advance(self.step_s)


@pytest.fixture
def loop() -> PunctualLoop:
    return PunctualLoop(ManualClock(100.0))  # type: ignore[abstract]


def test_a_connection_that_cannot_be_read_on_is_cut_and_the_others_have_their_turn(
    loop: PunctualLoop,
) -> None:
    def fail() -> None:
        raise ValueError("not that")

    laborious, seen = Laborious(), list[str]()
    broken, other = Slow(loop, fail), Slow(loop, lambda: seen.append("other"))
    laborious.wait(broken)
    laborious.wait(other)
    with pytest.raises(ValueError, match="not that"):
        loop.advance(0.01)
    assert broken.end.is_cut
    loop.advance(0.01)
    assert (seen, other.end.is_cut) == (["other"], False)
    laborious.wait(Slow(loop, lambda: seen.append("later")))
    loop.advance(0.01)
    assert seen == ["other", "later"]


def test_a_connection_with_more_to_read_goes_behind_the_others(loop: PunctualLoop) -> None:
    laborious, seen = Laborious(), list[str]()

    def once_more() -> None:
        seen.append("long")
        if seen.count("long") < 3:
            laborious.wait(long)

    long = Slow(loop, once_more)
    laborious.wait(long)
    laborious.wait(Slow(loop, lambda: seen.append("short")))
    for _ in range(5):
        loop.advance(0.01)
    assert seen == ["long", "short", "long", "long"]


async def _elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def _chunky(clock: Clock) -> tuple[Connection, CountingParser]:
    """A connection that has sent a body in two-byte chunks, in one read."""
    limits = Limits(max_body=1_000_000, max_header=9_000, max_connections=9, read_timeout=5.0, write_timeout=5.0)
    state = State(limits=limits, held=Held(10**9), peers=Peers(9), access=None, cors=None, clock=clock)
    intake = Intake(cast(Any, SimpleNamespace(submit=None, gone=None)), clock=clock, events=Events(), cap_s=60.0)
    config = uvicorn.Config(_elsewhere, http=Connection, ws="none", lifespan="off", log_config=None)
    config.load()
    connection = Connection(config, state, intake=intake, routes=Routes().by_path, events=Events())
    connection.connection_made(Wire())
    parser = CountingParser(connection.parser)
    connection.parser = cast(Any, parser)
    connection.data_received(CHUNKS)
    return connection, parser


def test_a_connection_of_tiny_chunks_is_parsed_for_a_moment_at_a_time() -> None:
    async def pieces_by_turn(step_s: float) -> list[int]:
        clock = Ticking(100.0)
        clock.step_s = step_s
        connection, parser = _chunky(clock)
        by_turn = []
        for _ in range(5):
            before = parser.reads
            connection.read_on()
            by_turn.append(parser.reads - before)
        return by_turn

    assert asyncio.run(pieces_by_turn(TURN_S / 3.5)) == [4] * 5
    assert asyncio.run(pieces_by_turn(2 * TURN_S)) == [1] * 5


def test_what_waits_to_be_parsed_is_not_copied_at_every_turn() -> None:
    async def peak_of_turns() -> int:
        clock = Ticking(100.0)
        clock.step_s = TURN_S
        connection, _ = _chunky(clock)
        connection.read_on()
        tracemalloc.start()
        try:
            for _ in range(5):
                connection.read_on()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert asyncio.run(peak_of_turns()) < 40 * PIECE < len(CHUNKS) / 10
