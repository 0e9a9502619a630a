"""The thread that drives a device: it takes the stages of batches in order, and keeps one running and one queued.

Libraries keep plans and handles per thread, so whatever is computed on a device is started from here: loading, warming
up, capturing, replaying. Other threads copy their rows and wait for marks.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_AFLOAT = 2
"""Stages that the device has at once: the next one is there when one ends, and no decision is more than one late."""


class Waitable(Protocol):
    """Something that comes to pass on the device."""

    def wait(self) -> None: ...


class Lane:
    """Runs what it is given, one after another, on a thread of its own that lives as long as the process."""

    def __init__(self, afloat: int = _AFLOAT) -> None:
        self._most = afloat
        self._news = threading.Condition()
        self._turns: list[tuple[int, int, Future[Any], Callable[[], Any], bool]] = []
        self._numbers = count()
        self._afloat: deque[Waitable] = deque()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], T]) -> T:
        """Run this there and wait for it; in place for who is there already. Context variables come along."""
        if threading.current_thread() is self._thread:
            return work()
        context = copy_context()
        done: Future[T] = self._take(-1, lambda: context.run(work), is_stage=False)
        return done.result()

    def submit(self, order: int, work: Callable[[], Waitable]) -> Future[Any]:
        """Have a stage started when it is its turn: the smallest `order` first, then the first to come.

        `work` starts it on the device and returns the mark of its end. On the lane's own thread it starts at once.
        """
        if threading.current_thread() is self._thread:
            started: Future[Any] = Future()
            self._do(started, work, is_stage=True)
            return started
        return self._take(order, work, is_stage=True)

    def _take(self, order: int, work: Callable[[], Any], *, is_stage: bool) -> Future[Any]:
        done: Future[Any] = Future()
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="device", daemon=True)
                self._thread.start()
            heapq.heappush(self._turns, (order, next(self._numbers), done, work, is_stage))
            self._news.notify()
        return done

    def _run(self) -> None:
        while True:
            # Waited for before the choice, so that the oldest batch's next stage still comes first.
            while len(self._afloat) >= self._most:
                _wait(self._afloat.popleft())
            with self._news:
                self._news.wait_for(lambda: self._turns)
                _, _, done, work, is_stage = heapq.heappop(self._turns)
            self._do(done, work, is_stage=is_stage)
            del done, work  # an idle lane holds no batch

    def _do(self, done: Future[Any], work: Callable[[], Any], *, is_stage: bool) -> None:
        try:
            result = work()
        except BaseException as error:  # whoever waits for it is told
            done.set_exception(error)
            return
        if is_stage:
            self._afloat.append(result)
        done.set_result(result)


def _wait(mark: Waitable) -> None:
    with suppress(Exception):  # the batch that it belongs to waits for the same mark, and tells
        mark.wait()


_lane = Lane()


def the_lane() -> Lane:
    """The lane of this process."""
    return _lane
