"""Hands heavy bodies to processes; senders take turns."""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from typing import Any, TypeAlias

import msgspec

from timebound.clock import MonotonicClock
from timebound.errors import DeadlineMissed, Refusal, RequestError
from timebound.reading.reader import Job, Reader
from timebound.reading.turns import Turns
from timebound.reading.wire import Errand, Facts, Known, Looked
from timebound.store.fingerprint import of_bytes
from timebound.types import Body, ModelInfo

_CLOCK = MonotonicClock()

Done: TypeAlias = Callable[[Looked | bytes | RequestError], None]
"""Gets what was found; of a reader, what that says."""


class Reading:
    """Hands bodies to processes, senders in turn; what these say comes back on the event loop.

    There is one process. Once a sender's bodies take long there is a second one, for everybody else's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count()
        self._asked: dict[int, Done] = {}  # only the loop's thread changes it, and only there are its objects let go
        self._turns: Turns[Job] = Turns(_CLOCK.now)
        self._readers: list[Reader] = []
        self._is_closed = False

    def __len__(self) -> int:
        """How many bodies are being looked at, or wait for it."""
        return len(self._asked)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return [reader.pid for reader in self._readers if reader.pid]

    def look(
        self, info: ModelInfo, body: bytes, done: Done, *, needs_print: bool, sender: str = "", until: float = inf
    ) -> Callable[[], None]:
        """Have a body looked at, then `done` called, once. Call what is returned when nobody wants to know any more.

        What cannot be in time, `until` on the monotonic clock, is not looked at. Raises `Refusal` if too many wait.
        """
        facts = b""
        if info.body is Body.JSON:
            facts = msgspec.msgpack.encode(Facts(info.request_schema, info.key, info.size_field, info.key_ignore))
        return self._hand_over(Job(facts, b"", body, needs_print), done, sender, until)

    def read(
        self, errand: Errand, body: bytes, done: Done, *, sender: str = "", until: float = inf
    ) -> Callable[[], None]:
        """The same by a reader of the protocol's own."""
        facts = msgspec.msgpack.encode(Known(errand.reader, errand.facts))
        return self._hand_over(Job(facts, errand.told, body, needs_print=False), done, sender, until)

    def _hand_over(self, job: Job, done: Done, sender: str, until: float) -> Callable[[], None]:
        number = next(self._numbers)
        if not self._turns.put(number, job, sender, until):
            detail = "too many large bodies wait to be read; send this one again a little later"
            raise Refusal(detail, code="overloaded", retry_after_s=1)
        self._asked[number] = done
        if not self._readers:
            self._start_reader(is_for_quick=False)
        return partial(self._forget, number)

    def _start_reader(self, *, is_for_quick: bool) -> None:
        if not self._is_closed and len(self._readers) == is_for_quick:
            self._readers.append(reader := Reader())
            start_new_thread(self._work, (reader, is_for_quick))

    def _forget(self, number: int) -> None:
        self._turns.drop(number)
        self._asked.pop(number, None)

    async def looked(
        self, info: ModelInfo, body: bytes, *, needs_print: bool, sender: str = "", until: float = inf
    ) -> Looked:
        """The same for who can wait; raises what is wrong with the body."""
        found: asyncio.Future[Any] = self._loop.create_future()
        forget = self.look(info, body, found.set_result, needs_print=needs_print, sender=sender, until=until)
        try:
            looked: Looked | RequestError = await found
        finally:
            forget()
        if isinstance(looked, RequestError):
            raise looked
        return looked

    def close(self) -> None:
        """Look at nothing any more, and let the processes go."""
        self._is_closed = True
        self._asked.clear()
        self._turns.close()
        for reader in self._readers:
            reader.close()

    def _tell(self, number: int, looked: Looked | bytes | RequestError) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done(looked)

    # ------------------------------------------------------------------ in a reader's thread

    def _work(self, reader: Reader, is_for_quick: bool) -> None:
        while (turn := self._turns.take(is_for_quick=is_for_quick)) is not None:
            number, sender, job = turn
            looked: Looked | bytes | RequestError = DeadlineMissed("the deadline would come while the body was read")
            takes_long = False
            if job is not None:
                began = _CLOCK.now()
                looked = reader.look(job) if job.facts else (None, 1.0, of_bytes(job.body))
                takes_long = self._turns.took(sender, _CLOCK.now() - began)
            turn = job = None
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._tell, number, looked)
                if takes_long:
                    self._loop.call_soon_threadsafe(partial(self._start_reader, is_for_quick=True))
        reader.end()
