"""Messages that come close together are asked together, so that they share batches as requests over HTTP do.

In one turn of the event loop an HTTP server reads from every socket that has something. gRPC gives it one call at a
time, and the next only when it has taken that one: sixty calls take sixty turns. If each were asked in its own turn, a
free worker would take a batch of one every time, and a batch costs several times what a request in it costs.

So messages wait for those that come within `WAIT_S`. How many clients ask at once cannot be seen from here, for gRPC
keeps their calls back; but how many came while one waited can. Where that are few, the next messages do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timebound.clock import Clock

Ask = Callable[[float], None]
"""Asks what a message asks; it is told for how many seconds the message has waited here."""

WAIT_S = 0.002
"""How long a message waits for others at most."""
NEAR_S = 0.001
"""A message waits only if the one before came within this time; else hardly another would come while it waits."""
WORTH = 4.0
"""Messages in one turn, on average over the last few, that are worth the wait."""
REST = 200
"""Messages that do not wait when it was not worth it: of a lone client one in a hundred waits at most."""
MOST = 16
"""Messages that are asked in one turn of the event loop; each takes it up to 50 microseconds."""


class Together:
    """The messages that wait for others."""

    __slots__ = ("_clock", "_last", "_resting", "_timer", "_usual", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = -NEAR_S
        """When the last message came."""
        self._resting = 0
        """Messages that are not to wait."""
        self._usual = WORTH
        """How many were asked together lately."""
        self._waiting: list[tuple[float, Ask]] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self, ask: Ask) -> None:
        """Call `ask` now or soon."""
        now = self._clock.now()
        is_near, self._last = now - self._last < NEAR_S, now
        if self._timer is None and (self._resting or not is_near):
            self._resting -= bool(self._resting)
            ask(0.0)
            return
        self._waiting.append((now, ask))
        if len(self._waiting) >= MOST:
            self._ask()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._ask)

    def _ask(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        self._usual = (self._usual + len(waiting)) / 2
        if self._usual < WORTH:
            self._resting, self._usual = REST, WORTH
        now = self._clock.now()
        for came, ask in waiting:
            ask(now - came)
