"""An event loop that runs only when told, on a manual clock: deadlines without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import inf
from typing import Any, TypeVar, TypeVarTuple

from timebound.clock import ManualClock

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class ManualLoop(asyncio.AbstractEventLoop):
    """Keeps what is to be called; `run_due` calls it.

    `early_s` is how long before its time a timer may fire: real loops round to their clock's resolution.
    """

    def __init__(self, clock: ManualClock, *, early_s: float = 0.0) -> None:
        self._clock = clock
        self._early_s = early_s
        self._soon: list[tuple[asyncio.Handle, Callable[[], object]]] = []
        self._later: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []

    def time(self) -> float:
        return self._clock.now()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self)
        self._soon.append((handle, lambda: callback(*args)))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self)
        self._later.append((handle, lambda: callback(*args)))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by a timer's `cancel`; a cancelled timer is skipped when its time comes."""

    @property
    def timers(self) -> int:
        """Timers that are set and not cancelled."""
        return sum(not handle.cancelled() for handle, _ in self._later)

    def run_due(self) -> None:
        """One turn: the timers whose time has come, in order, then everything that was to be called soon."""
        due = [timer for timer in self._later if timer[0].when() <= self.time() + self._early_s]
        self._later = [timer for timer in self._later if timer not in due]
        for handle, call in sorted(due, key=lambda timer: timer[0].when()):
            if not handle.cancelled():
                call()
        while self._soon:
            handle_soon, call = self._soon.pop(0)
            if not handle_soon.cancelled():
                call()

    def advance(self, seconds: float) -> None:
        """Move the clock and run what is due then."""
        self._clock.advance(seconds)
        self.run_due()


class PunctualLoop(ManualLoop):
    """The same, but time passes instead of jumping: each timer fires when it is due."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.run_due()
        end, before = self.time() + seconds, -1.0
        while (at := self._next_at(before)) <= end:
            before = self.time()
            self.pause(max(0.0, at - before))
        self.pause(max(0.0, end - self.time()))

    def pause(self, seconds: float) -> None:
        """Stand still for so long, and run only then what has become due meanwhile."""
        super().advance(seconds)

    def _next_at(self, before: float) -> float:
        """When the next timer fires; not again before its time if time stood still since the last one did."""
        due = min((handle.when() for handle, _ in self._later if not handle.cancelled()), default=inf)
        return due if self.time() == before else due - self._early_s


class Started:
    """A coroutine driven by hand: it has run up to its first wait; `is_done` runs it on."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: asyncio.Future[Any] | None = None
        self._is_done = False
        self._step()

    def is_done(self) -> bool:
        """Whether it has returned, now that what it waited for may have come."""
        if not self._is_done and self._waits_for is not None and self._waits_for.done():
            self._step()
        return self._is_done

    def close(self) -> None:
        """Give it up."""
        self._coroutine.close()

    def _step(self) -> None:
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration:
            self._is_done = True
