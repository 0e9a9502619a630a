"""Who sends next: the clock (an open loop) or the answer to the last request (a closed one)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf

from timebound.lab.load.attempts import Asker, Done, End, Exchange, Question

# Who lost a connection takes a breath, or a server that is away would be asked thousands of times a second.
BREATH_S = 0.01


Take = Callable[[], Exchange]
"""Gives the next request."""


class OpenLoop:
    """Requests come at their times, counted from the start, whatever the server does."""

    def __init__(self, times: Iterator[float]) -> None:
        self._times = times

    async def run(self, asker: Asker, take: Take, done: Done) -> None:
        """Send all, and wait until the last question is over; `done` hears of every one."""
        began, over = asker.clock.now(), asker.alarm.future()
        due = next(self._times, None)

        def arrive() -> None:
            """Send what is due, then sleep until the next arrival."""
            nonlocal due
            since = asker.clock.now() - began
            while due is not None and due <= since:
                asker.ask(take(), began + due, done)
                due = next(self._times, None)
            if due is not None:
                asker.alarm.at(began + due, arrive)
            elif not over.done():
                over.set_result(None)

        arrive()
        await over
        await asker.finished()


class ClosedLoop:
    """Each of `clients` sends, waits for the end of its question, thinks, and sends again.

    It ends after so many requests or seconds, or whichever comes first. If `is_shared_out`, each client sends its equal
    part of the requests, rather than what is left.
    """

    def __init__(
        self,
        clients: int,
        *,
        requests: float = inf,
        seconds: float = inf,
        is_shared_out: bool = False,
        think_s: tuple[float, float] = (0.0, 0.0),
        seed: int = 1,
    ) -> None:
        self._seconds = seconds
        self._think_s = think_s
        self._random = random.Random(seed)
        self._left = requests
        whole, rest = divmod(requests, clients) if is_shared_out and requests < inf else (inf, 0)
        self._shares = [whole + (number < rest) for number in range(clients)]
        self._at_work = clients

    async def run(self, asker: Asker, take: Take, done: Done) -> None:
        """Run until it ends, and wait until the last question is over; `done` hears of every one."""
        self._asker, self._take, self._done = asker, take, done
        now = asker.clock.now()
        self._ends = now + self._seconds
        self._over = asker.alarm.future()
        for share in self._shares:
            send = self._client(share)
            if self._think_s[1]:  # people do not come all at once
                asker.alarm.at(now + self._random.uniform(0.0, self._think_s[1]), send)
            else:
                send()
        await self._over

    def _client(self, share: float) -> Callable[[], None]:
        """One client: the call has it send a request, and after each answer the next, `share` of them at the most."""
        asker, left = self._asker, share

        def send() -> None:
            nonlocal left
            now = asker.clock.now()
            if left <= 0 or self._left <= 0 or now >= self._ends:
                self._leave()
                return
            left -= 1
            self._left -= 1
            asker.ask(self._take(), now, done)

        def done(question: Question) -> None:
            self._done(question)
            pause = self._random.uniform(*self._think_s) if self._think_s[1] else 0.0
            if question.last.end is End.LOST:
                pause = max(pause, BREATH_S)
            if pause:
                asker.alarm.at(asker.clock.now() + pause, send)
            else:
                send()

        return send

    def _leave(self) -> None:
        """A client has nothing more to do."""
        self._at_work -= 1
        if not self._at_work and not self._over.done():
            self._over.set_result(None)


Loop = OpenLoop | ClosedLoop
