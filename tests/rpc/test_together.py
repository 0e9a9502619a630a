from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from timebound.clock import ManualClock
from timebound.rpc.together import MOST, NEAR_S, REST, WAIT_S, Together

ENOUGH = 4


class Messages:
    """Messages that come one after another, and for how long each has waited when it is asked."""

    def __init__(self) -> None:
        self.clock = ManualClock(1.0)
        self.waited: list[float] = []
        self._together = Together(self.clock)

    def come(self, count: int, *, apart_s: float = NEAR_S / 10) -> None:
        for _ in range(count):
            self._together.take(self.waited.append)
            self.clock.advance(apart_s)

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(1_000 * WAIT_S):
            while len(self.waited) < count:
                await asyncio.sleep(0)


def run(test: Callable[[Messages], Awaitable[None]]) -> None:
    async def go() -> None:
        await test(Messages())

    asyncio.run(go())


def test_a_message_that_comes_alone_is_asked_at_once() -> None:
    async def test(messages: Messages) -> None:
        messages.come(3, apart_s=2 * NEAR_S)
        assert messages.waited == [0, 0, 0]

    run(test)


def test_messages_that_come_close_together_are_asked_together_and_soon() -> None:
    async def test(messages: Messages) -> None:
        messages.come(1 + ENOUGH)
        assert messages.waited == [0]
        await messages.until_asked(1 + ENOUGH)
        assert messages.waited == [0, *sorted(messages.waited[1:], reverse=True)]
        messages.come(ENOUGH)
        assert len(messages.waited) == 1 + ENOUGH  # they wait again

    run(test)


def test_where_few_came_while_one_waited_the_next_do_not_wait() -> None:
    async def test(messages: Messages) -> None:
        messages.come(3)
        await messages.until_asked(3)
        messages.come(REST)
        assert len(messages.waited) == 3 + REST
        messages.come(1)
        assert len(messages.waited) == 3 + REST  # then it is tried again

    run(test)


def test_of_very_many_so_many_are_asked_in_one_turn() -> None:
    async def test(messages: Messages) -> None:
        messages.come(MOST)
        assert len(messages.waited) == 1
        messages.come(1)
        assert len(messages.waited) == 1 + MOST

    run(test)
