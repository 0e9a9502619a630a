"""A way to Redis that stays connected by itself, and the one who writes in the log whether it is."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

log = logging.getLogger("timebound.store")

Done: TypeAlias = Callable[[Any], None]
"""Takes a reply, or the exception in its place: `Down` or `hiredis.ReplyError`."""

LATE_S = 0.005
"""If a timer fires this much too late, it was this process that slept, and replies may lie unread."""
CONNECT_S = 0.5
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.5)
"""Between attempts to connect; the last for ever: nobody waits for it, and sharing is back soon after Redis is."""


class Down(Exception):
    """There is no connection, or it broke before the reply came; its text says why, where that is known."""


def reply_to_come(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Future[Any], Done]:
    """A reply to wait for, and what makes it come; an exception in its place is raised."""
    reply: asyncio.Future[Any] = loop.create_future()

    def done(value: Any) -> None:
        if reply.done():
            return
        if isinstance(value, Exception):
            reply.set_exception(value)
        else:
            reply.set_result(value)

    return reply, done


class Report:
    """Tells in the log when one of several lines is lost, and when all are there again."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._missing: set[int] = set()
        self._said = ""

    def missing(self, line: Line, text: str = "", reason: str = "") -> None:
        """This line is not connected; the same reason is not told again for the next."""
        self._missing.add(id(line))
        if text and reason != self._said:
            self._said = reason
            log.warning(text, reason, extra={"store": self._shown})

    def connected(self, line: Line) -> None:
        """This line is up."""
        self._missing.discard(id(line))
        if not self._missing:
            self._said = ""
            log.info("the store is connected", extra={"store": self._shown})


class Line(ABC):
    """Commands go out and replies come back while it is up; else everybody is told `Down` at once.

    `on_up` is called with it ready, `on_down` with the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        *,
        patience_s: float,
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._report = report
        self.patience_s = patience_s
        self._on_up = on_up
        self._on_down = on_down
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.is_up = False
        self.is_refused = False  # whether the last attempt failed for something that the operator must change
        self.reason: str | None = "not connected yet"
        report.missing(self)

    @property
    @abstractmethod
    def unanswered(self) -> int:
        """Commands whose reply has not come."""

    @abstractmethod
    def send(self, done: Done | None, *command: Any) -> None:
        """Send a command; `done` gets its reply, or `Down` at once if there is no connection."""

    @abstractmethod
    async def ask(self, *command: Any) -> Any:
        """Send a command and wait for its reply; raises `Down` or `hiredis.ReplyError`."""

    @abstractmethod
    async def _connect(self) -> str | None:
        """One attempt; why it failed, or None."""

    @abstractmethod
    def _hang_up(self, reason: str) -> None:
        """Tell everyone who waits for a reply, and be silent."""

    async def start(self) -> None:
        """Connect, and stay connected from now on; returns when the first attempt has succeeded or failed."""
        first = self._loop.create_future()
        self._keeper = asyncio.create_task(self._keep_connected(first))
        await first

    async def stop(self) -> None:
        """Send what is waiting, wait for the replies within reason, and close."""
        end = self._loop.time() + 1.0
        while self.is_up and self.unanswered and self._loop.time() < end:
            await asyncio.sleep(0.005)
        self._close("stopped")
        # A library on the way may take a cancellation for a time limit of its own and go on: say it until it is heard.
        while self._keeper is not None and not self._keeper.done():
            self._keeper.cancel()
            await asyncio.wait({self._keeper}, timeout=0.1)

    async def _keep_connected(self, first: asyncio.Future[None]) -> None:
        failures = 0
        while True:
            self._lost.clear()
            trouble = await self._connect()
            if trouble is None:
                failures = 0
                if self.reason is not None:
                    self._report.connected(self)
                self.is_up, self.reason = True, None
                self._on_up()
            elif trouble != self.reason:
                self._report.missing(self, "the store cannot be reached: %s; requests are answered without it", trouble)
                self.reason = trouble
            if not first.done():
                first.set_result(None)
            if trouble is None:
                await self._lost.wait()
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    def _close(self, reason: str) -> None:
        if not self.is_up:
            return
        self.is_up, self.reason = False, reason
        if reason != "stopped":
            self._report.missing(self, "the store is lost: %s", reason)
        self._hang_up(reason)
        self._on_down(reason)
        self._lost.set()
