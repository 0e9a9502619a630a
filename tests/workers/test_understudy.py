"""What the gateway keeps for an understudy that does not answer."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from timebound.types import Outcome
from timebound.workers import messages, wire
from timebound.workers.understudy import PATIENCE_S, Understudy


def ask(count: int, body: bytes) -> tuple[list[Outcome | None], int]:
    """Ask so often of an understudy that never reads; returns what was answered at once, and after it has gone."""

    async def asked() -> tuple[list[Outcome | None], int]:
        answers: list[Outcome | None] = []
        ours, theirs = socket.socketpair()
        understudy = Understudy(asyncio.get_running_loop())
        await understudy.open(ours, lambda: None)
        for _ in range(count):
            understudy.fallback("model", body, answers.append)
            await asyncio.sleep(0)  # each goes out in a frame of its own
        at_once = list(answers)
        theirs.close()
        while len(answers) < count:
            await asyncio.sleep(0.001)
        understudy.fallback("model", body, answers.append)  # there is room again: it waits for the next process
        return at_once, len(answers)

    return asyncio.run(asked())


def test_one_that_stands_still_is_asked_only_so_much() -> None:
    at_once, in_the_end = ask(5_000, b"small")
    assert at_once == [None] * (5_000 - 4096)
    assert in_the_end == 5_000


def test_large_bodies_are_counted_by_their_bytes() -> None:
    at_once, in_the_end = ask(80, bytes(1 << 20))
    assert at_once == [None] * (80 - 64)
    assert in_the_end == 80


def test_a_single_body_of_any_size_is_asked_about() -> None:
    assert ask(1, bytes(65 << 20)) == ([], 1)


def test_what_a_call_of_another_ended_is_asked_of_the_next_process() -> None:
    async def asked() -> tuple[list[str], list[bytes]]:
        answers: list[str] = []

        def tell(name: str, found: Outcome | None) -> None:
            answers.append(f"{name}: {found}")

        loop, understudy = asyncio.get_running_loop(), Understudy(asyncio.get_running_loop())
        ours, theirs = socket.socketpair()
        await understudy.open(ours, lambda: None, lambda: [2])
        for name in ("before", "deadly", "after"):
            understudy.fallback("model", name.encode(), partial(tell, name))
        await loop.run_in_executor(None, wire.read_frame, theirs)
        theirs.close()
        while not answers:
            await asyncio.sleep(0.001)
        ours, theirs = socket.socketpair()
        await understudy.open(ours, lambda: None)
        frame = await loop.run_in_executor(None, wire.read_frame, theirs)
        assert frame is not None
        assert isinstance(frame[0], messages.Errand)
        told = list(answers)
        theirs.close()
        return told, [call.body for call in frame[0].calls]

    assert asyncio.run(asked()) == (["deadly: None"], [b"before", b"after"])


def test_one_that_falls_silent_is_found_after_little_more_than_its_patience() -> None:
    async def run() -> float:
        loop, hangs = asyncio.get_running_loop(), asyncio.Event()
        understudy, answered = Understudy(loop), asyncio.Event()
        ours, theirs = socket.socketpair()
        await understudy.open(ours, hangs.set)
        understudy.fallback("model", b"quick", lambda _: answered.set())
        understudy.fallback("model", b"slow", lambda _: None)
        await loop.run_in_executor(None, wire.read_frame, theirs)
        wire.write_frame(theirs, messages.ErrandDone(1, Outcome(b""), 1.0))
        await asyncio.wait_for(answered.wait(), 20)
        start = loop.time()
        await asyncio.wait_for(hangs.wait(), 20)
        took_s = loop.time() - start
        theirs.close()
        return took_s

    assert PATIENCE_S <= asyncio.run(run()) < 1.7 * PATIENCE_S
