"""Results in memory: never more bytes than allowed, the least recently used go first, none outlives its time."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.store.gateways import OTHER_PRINT, PRINT, Told, stored

from timebound.clock import ManualClock
from timebound.store.base import Kind
from timebound.store.memory import Memory

BOUND = 10_000


def keys_in(memory: Memory) -> list[str]:
    async def listed() -> list[str]:
        return [entry.key async for entry in memory.entries(None)]

    return asyncio.run(listed())


def test_the_least_recently_used_go_when_there_are_too_many_bytes() -> None:
    memory = Memory(BOUND, ManualClock())
    for name in ("a", "b", "c"):
        memory.complete(("m", name), stored(b"x" * 2000), 60)
    told = Told()
    memory.claim(("m", "a"), PRINT, told)  # used again: b is the oldest now
    assert told.kinds == [Kind.RESULT]
    memory.complete(("m", "d"), stored(b"x" * 2000), 60)
    assert keys_in(memory) == ["c", "a", "d"]
    assert memory.memory_bytes <= BOUND


def test_listing_is_no_use() -> None:
    memory = Memory(BOUND, ManualClock())
    for name in ("a", "b", "c"):
        memory.complete(("m", name), stored(b"x" * 2000), 60)
    assert keys_in(memory) == ["a", "b", "c"]
    memory.complete(("m", "d"), stored(b"x" * 2000), 60)
    assert keys_in(memory) == ["b", "c", "d"]


def test_a_result_larger_than_the_bound_is_not_kept_and_drives_nothing_out() -> None:
    memory = Memory(BOUND, ManualClock())
    memory.complete(("m", "small"), stored(), 60)
    told = Told()
    memory.claim(("m", "large"), PRINT, told)
    memory.claim(("m", "large"), PRINT, told)
    memory.complete(("m", "large"), stored(b"x" * BOUND), 60)
    assert told.kinds == [Kind.OWNER, Kind.JOINED, Kind.RESULT]  # who waits gets it all the same
    assert keys_in(memory) == ["small"]


def test_a_result_ends_with_its_time_to_the_moment() -> None:
    clock = ManualClock()
    memory = Memory(BOUND, clock)
    memory.complete(("m", "k"), stored(), 60)
    clock.advance(59.9)
    assert memory.look(("m", "k"), PRINT) is not None
    clock.advance(0.1)
    assert keys_in(memory) == []
    assert memory.look(("m", "k"), PRINT) is None
    assert (memory.memory_bytes, len(memory)) == (0, 0)


def test_being_read_does_not_make_it_last() -> None:
    clock = ManualClock()
    memory = Memory(BOUND, clock)
    memory.complete(("m", "k"), stored(), 60)
    for _ in range(7):
        clock.advance(10)
        found = memory.look(("m", "k"), PRINT)
    assert found is None


def test_an_ended_result_makes_room_for_another_body() -> None:
    clock = ManualClock()
    memory = Memory(BOUND, clock)
    memory.complete(("m", "k"), stored(), 60)
    clock.advance(60)
    told = Told()
    memory.claim(("m", "k"), OTHER_PRINT, told)
    assert told.kinds == [Kind.OWNER]


def test_what_has_ended_is_not_counted_as_cleared() -> None:
    clock = ManualClock()
    memory = Memory(BOUND, clock)
    memory.complete(("m", "old"), stored(), 1)
    memory.complete(("m", "young"), stored(), 60)
    clock.advance(2)
    assert (memory.forget(("m", "old")), asyncio.run(memory.clear(None))) == (0, 1)
    assert memory.memory_bytes == 0


def test_a_million_results_are_listed_and_cleared_while_others_have_their_turn() -> None:
    async def run() -> tuple[int, int, int, int]:
        memory = Memory(1 << 30, ManualClock())
        for number in range(2_000):
            memory.complete(("m", f"key-{number}"), stored(), 60)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        listed = len([entry async for entry in memory.entries("m")])
        listing_turns, turns = turns, 0
        clearing = asyncio.create_task(memory.clear("m"))
        await asyncio.sleep(0)
        memory.complete(("m", "new"), stored(), 60)
        cleared = await clearing
        beside.cancel()
        assert [entry.key async for entry in memory.entries(None)] == ["new"]
        return listed, cleared, listing_turns, turns

    listed, cleared, listing_turns, clearing_turns = asyncio.run(run())
    assert (listed, cleared) == (2_000, 2_000)
    assert min(listing_turns, clearing_turns) >= 2_000 // 512


STEPS = st.one_of(
    st.tuples(st.just("keep"), st.integers(0, 12), st.integers(0, 6000), st.booleans()),
    st.tuples(st.just("look"), st.integers(0, 12), st.just(0), st.booleans()),
    st.tuples(st.just("forget"), st.integers(0, 12), st.just(0), st.booleans()),
    st.tuples(st.just("pass"), st.integers(0, 40), st.just(0), st.booleans()),
)


@given(st.lists(STEPS, max_size=60))
def test_the_bytes_are_the_sum_of_what_is_kept_and_never_above_the_bound(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    clock = ManualClock()
    memory = Memory(BOUND, clock)
    for step, number, size, flag in steps:
        key = ("m", f"key-{number}")
        if step == "keep":
            memory.keep(key, stored(b"x" * size, is_full=flag), 30)
        elif step == "look":
            memory.look(key, PRINT)
        elif step == "forget":
            memory.forget(key) if flag else asyncio.run(memory.clear("m"))
        else:
            clock.advance(number)
        assert 0 <= memory.memory_bytes <= BOUND
        assert (memory.memory_bytes == 0) == (len(memory) == 0)
    # Each is forgotten by itself: what it frees adds up to what was counted.
    counted, freed = memory.memory_bytes, 0
    for number in range(13):
        before = memory.memory_bytes
        memory.forget(("m", f"key-{number}"))
        freed += before - memory.memory_bytes
    assert (freed, memory.memory_bytes, len(memory)) == (counted, 0, 0)
