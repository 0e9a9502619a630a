"""Who sends next: the clock (an open loop) or the answer to the last request (a closed one)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timebound.clock import Clock
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.attempts import Asker, Done, End, Exchange, Question

# Who lost a connection takes a breath, or a server that is away would be asked thousands of times a second.
BREATH_S = 0.01


@dataclass(frozen=True)
class Course:
    """What a loop works with; `take` gives the next request, `done` hears of every question that is over."""

    asker: Asker
    take: Callable[[], Exchange]
    done: Done
    alarm: Alarm
    clock: Clock


class OpenLoop:
    """Requests come at their times, counted from the start, whatever the server does."""

    def __init__(self, times: Iterator[float]) -> None:
        self._times = times

    async def run(self, course: Course) -> None:
        """Send all, and wait until the last question is over."""
        self._course = course
        self._began = course.clock.now()
        self._over = course.alarm.future()
        self._next = next(self._times, None)
        self._arrive()
        await self._over
        await course.asker.finished()

    def _arrive(self) -> None:
        """Send what is due, then sleep until the next arrival."""
        course = self._course
        since = course.clock.now() - self._began
        while self._next is not None and self._next <= since:
            course.asker.ask(course.take(), self._began + self._next, course.done)
            self._next = next(self._times, None)
        if self._next is not None:
            course.alarm.at(self._began + self._next, self._arrive)
        elif not self._over.done():
            self._over.set_result(None)


@dataclass(frozen=True)
class Closing:
    """When a closed loop ends: after so many requests, after so many seconds, or whichever comes first."""

    requests: int | None = None
    seconds: float | None = None
    # Each client sends its equal part of the requests, rather than what is left.
    is_shared_out: bool = False


class ClosedLoop:
    """Each of `clients` sends, waits for the end of its question, thinks, and sends again."""

    def __init__(
        self, clients: int, closing: Closing, *, think_s: tuple[float, float] = (0.0, 0.0), seed: int = 1
    ) -> None:
        self._clients = clients
        self._closing = closing
        self._think_s = think_s
        self._random = random.Random(seed)
        self._left = closing.requests if closing.requests is not None else float("inf")
        self._at_work = clients

    async def run(self, course: Course) -> None:
        """Run until the closing, and wait until the last question is over."""
        self._course = course
        now = course.clock.now()
        self._ends = now + self._closing.seconds if self._closing.seconds is not None else float("inf")
        self._over = course.alarm.future()
        for number in range(self._clients):
            send = self._client(self._share(number))
            if self._think_s[1]:  # people do not come all at once
                course.alarm.at(now + self._random.uniform(0.0, self._think_s[1]), send)
            else:
                send()
        await self._over

    def _share(self, number: int) -> float:
        if not self._closing.is_shared_out or self._closing.requests is None:
            return float("inf")
        whole, rest = divmod(self._closing.requests, self._clients)
        return whole + (number < rest)

    def _client(self, share: float) -> Callable[[], None]:
        """One client: the call has it send a request, and after each answer the next, `share` of them at the most."""
        course, left = self._course, share

        def send() -> None:
            nonlocal left
            now = course.clock.now()
            if left <= 0 or self._left <= 0 or now >= self._ends:
                self._leave()
                return
            left -= 1
            self._left -= 1
            course.asker.ask(course.take(), now, done)

        def done(question: Question) -> None:
            course.done(question)
            pause = self._random.uniform(*self._think_s) if self._think_s[1] else 0.0
            if question.last.end is End.LOST:
                pause = max(pause, BREATH_S)
            if pause:
                course.alarm.at(course.clock.now() + pause, send)
            else:
                send()

        return send

    def _leave(self) -> None:
        """A client has nothing more to do."""
        self._at_work -= 1
        if not self._at_work and not self._over.done():
            self._over.set_result(None)


Loop = OpenLoop | ClosedLoop
