"""Whose heavy body is looked at next: senders take turns by the time their bodies take; none waits long for another's.

Each sender has a clock that its bodies move on by what they took. Next is who would be through first by these clocks,
as in weighted fair queueing; who has been away starts where the others are. Who takes long may use one reader only:
the other one is for those whose bodies are quick. Threads take; the event loop puts in.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

Job = TypeVar("Job")

QUICK_S = 0.1
"""Who takes longer than this for a body on the average may use one reader only."""
MOST_OF_ONE, MOST = 256, 1024
"""Bodies that wait, of one sender and in all."""
MOST_SENDERS = 1024
_NEWS = 0.5
"""The share of the last body in what is expected of a sender's next."""


class _Sender(msgspec.Struct, eq=False):
    """One who sends bodies: those that wait, in the order they came, with the time they have."""

    waiting: OrderedDict[int, float]
    at_s: float = 0.0
    """Its clock."""
    usual_s: float = 0.0
    """What a body of its takes."""


class Turns(Generic[Job]):
    """Bodies that wait, by sender."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._change = threading.Condition()
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        self._jobs: dict[int, tuple[str, Job]] = {}
        self._at_s = 0.0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, number: int, job: Job, sender: str, until: float) -> bool:
        """One more; False if too many wait already, of this sender or of all."""
        with self._change:
            known = self._senders.setdefault(sender, _Sender(OrderedDict()))
            self._senders.move_to_end(sender)
            self._forget_senders()
            if len(known.waiting) >= MOST_OF_ONE or len(self._jobs) >= MOST:
                return False
            if not known.waiting:
                known.at_s = max(known.at_s, self._at_s)
            known.waiting[number] = until
            self._jobs[number] = sender, job
            self._change.notify_all()
            return True

    def drop(self, number: int) -> None:
        """Nobody wants to know any more."""
        with self._change:
            self._remove(number)

    def take(self, *, is_for_quick: bool = False) -> tuple[int, str, Job | None] | None:
        """Whose turn it is: a number, its sender and its job, None instead if it has not the time; waits for one.

        None alone once this is closed. `is_for_quick`: of a sender whose bodies are quick.
        """
        with self._change:
            while not self._is_closed:
                sender = self._next(is_for_quick=is_for_quick)
                if sender is not None:
                    return self._take(sender)
                self._change.wait()
            return None

    def took(self, sender: str, seconds: float) -> bool:
        """A body of this sender took so long; whether that is longer than quick."""
        with self._change:
            known = self._senders.setdefault(sender, _Sender(OrderedDict()))
            known.at_s += seconds
            known.usual_s += _NEWS * (seconds - known.usual_s)
            return known.usual_s > QUICK_S

    def close(self) -> None:
        """Nobody gets anything any more."""
        with self._change:
            self._is_closed = True
            self._senders.clear()
            self._jobs.clear()
            self._change.notify_all()

    # ------------------------------------------------------------------ with the lock

    def _next(self, *, is_for_quick: bool) -> str | None:
        waiting = [
            (known.at_s + known.usual_s, sender)
            for sender, known in self._senders.items()
            if known.waiting and not (is_for_quick and known.usual_s > QUICK_S)
        ]
        return min(waiting, key=lambda entry: entry[0])[1] if waiting else None

    def _take(self, sender: str) -> tuple[int, str, Job | None]:
        known = self._senders[sender]
        number, until = next(iter(known.waiting.items()))
        job = self._remove(number)
        if self._now() + known.usual_s > until:
            known.usual_s *= 1.0 - _NEWS  # what is expected may be wrong: it is not held against a sender for ever
            return number, sender, None
        self._at_s = max(self._at_s, known.at_s)
        return number, sender, job

    def _remove(self, number: int) -> Job | None:
        entry = self._jobs.pop(number, None)
        if entry is None:
            return None
        sender, job = entry
        self._senders[sender].waiting.pop(number, None)
        return job

    def _forget_senders(self) -> None:
        while len(self._senders) > MOST_SENDERS:
            oldest = next((name for name, known in self._senders.items() if not known.waiting), None)
            if oldest is None:
                return
            del self._senders[oldest]
