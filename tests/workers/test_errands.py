"""The understudy's desk: calls that are stuck delay nobody else, and those that fail are told to whom they concern."""

from __future__ import annotations

import asyncio
import logging
import socket
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.errors import RequestError
from timebound.workers.at_work import Note
from timebound.workers.errands import _THREADS, Desk, Errands
from timebound.workers.messages import FALLBACK, SIZE, Call
from timebound.workers.runner import Runner

PATIENCE_S = 20.0


def test_calls_that_are_stuck_are_left_behind_and_the_others_are_served() -> None:
    stuck, done = Event(), SimpleQueue[int]()

    def run(call: Call) -> None:
        if call.duty == "hang":
            stuck.wait(PATIENCE_S)
        done.put(call.number)

    desk = Desk(run, MonotonicClock())
    try:
        for number in range(_THREADS):
            desk.put(Call(number, "hang", "m", b""))
        for number in range(100, 108):
            desk.put(Call(number, "good", "m", b""))
        assert sorted(done.get(timeout=PATIENCE_S) for _ in range(8)) == list(range(100, 108))
    finally:
        stuck.set()


def test_a_call_that_comes_just_when_nothing_seems_to_wait_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, done = Event(), SimpleQueue[int]()

    def run(call: Call) -> None:
        if call.duty == "hang":
            stuck.wait(PATIENCE_S)
        done.put(call.number)

    class Calls(SimpleQueue[Call]):
        """One more comes between the look that finds nothing and what follows from it."""

        def empty(self) -> bool:
            is_empty = super().empty()
            if is_empty and late:
                desk.put(late.pop())
            return is_empty

    monkeypatch.setattr("timebound.workers.errands.SimpleQueue", Calls)
    late: list[Call] = []
    desk = Desk(run, MonotonicClock())
    try:
        for number in range(_THREADS):
            desk.put(Call(number, "hang", "m", b""))
        late.append(Call(100, "good", "m", b""))
        assert done.get(timeout=PATIENCE_S) == 100
    finally:
        stuck.set()


def test_every_call_is_served_once() -> None:
    done = SimpleQueue[int]()
    desk = Desk(lambda call: done.put(call.number), MonotonicClock())
    for number in range(50):
        desk.put(Call(number, "good", "m", b""))
    assert sorted(done.get(timeout=PATIENCE_S) for _ in range(50)) == list(range(50))


class Rude(tb.Model):
    def infer(self, batch: Any) -> Any:
        return batch

    def fallback(self, request: Any) -> Any:
        raise asyncio.CancelledError


def test_whatever_a_fallback_raises_is_told_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Errands(theirs, {"rude": Runner(Rude(), MonotonicClock())}, Note()).run(Call(1, FALLBACK, "rude", b""))
        assert ours.recv(1 << 16), "the gateway need not wait until its guard's time has come"


class Picky(tb.Model):
    def predict(self, batch: list[Any]) -> list[Any]:
        return batch

    def size(self, request: Any) -> float:
        raise RequestError("send a list") if "client" in str(request) else RuntimeError("a bug")


@pytest.mark.parametrize(("body", "level"), [(b'"client"', logging.DEBUG), (b'"server"', logging.ERROR)])
def test_only_what_the_operator_can_mend_is_logged_as_an_error(
    body: bytes, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, caplog.at_level(logging.DEBUG):
        errands = Errands(theirs, {"picky": Runner(Picky(), MonotonicClock())}, Note())
        errands.run(Call(1, SIZE, "picky", body))
        assert ours.recv(1 << 16), "the gateway is answered either way"
    # Clerks that were stuck in another test may still have a word to say of it.
    assert [record.levelno for record in caplog.records if "picky" in record.getMessage()] == [level]
