"""The fetching process answers each call once, whoever cancels it and whenever."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.workers import messages, wire
from timebound.workers.at_work import Note
from timebound.workers.fetcher import CANCEL, FETCH
from timebound.workers.fetching import Fetch, _Desk


class Waits(tb.Model):
    json = True

    async def fetch(self, request: Any) -> Any:
        if request == "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0 if request == "quick" else 30)
        return request


def ask(*calls: messages.Call) -> list[tuple[int, str]]:
    """What was answered, by number, until the first answer came and what was begun is over."""
    ours, theirs = socket.socketpair()

    async def serve() -> None:
        desk = _Desk({"waits": Fetch(Waits(), MonotonicClock())}, Note())
        await desk.open(theirs)
        await asyncio.get_running_loop().run_in_executor(None, ours.recv, 1, socket.MSG_PEEK)
        await desk.finish()
        desk.close()

    with ours:
        ours.settimeout(20)
        for call in calls:
            wire.write_frame(ours, messages.Errand([call]))
        asyncio.run(serve())
        answers = []
        while (frame := wire.read_frame(ours)) is not None:
            assert isinstance(frame[0], messages.ErrandDone)
            answers.append((frame[0].number, frame[0].outcome.code))
    return answers


def call(number: int, body: str) -> messages.Call:
    return messages.Call(number, FETCH, "waits", msgspec.json.encode(body))


def test_a_call_that_is_called_off_before_it_began_is_answered() -> None:
    assert [number for number, _ in ask(call(1, "slow"), messages.Call(1, CANCEL, "", b""))] == [1]


def test_a_fetch_that_cancels_itself_failed_as_others_do() -> None:
    assert ask(call(1, "quick"), call(2, "cancels itself")) == [(1, ""), (2, "model_failed")]
