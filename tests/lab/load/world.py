"""A client whose server is the test, on a manual clock: loops and attempts without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tests.manual_loop import ManualLoop, Started

from timebound.clock import ManualClock
from timebound.lab.load.alarm import Alarm
from timebound.lab.load.attempts import Asker, Exchange, Manners, Question
from timebound.lab.load.client import Call, Client, Reply
from timebound.lab.load.loops import Loop

OK = Reply(200, [], b"{}")


class World:
    """`sent` has what was sent, in order; answer it by `answer`, or let `takes_s` do so."""

    def __init__(self, manners: Manners | None = None, takes_s: float | None = None, kind: type[Asker] = Asker) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)  # type: ignore[abstract]
        self.alarm = Alarm(self.loop, self.clock)
        self.asker = kind(cast(Client, self), manners or Manners(10.0), self.alarm, self.clock)
        self.sent: list[tuple[float, Call]] = []
        self.abandoned: list[Call] = []
        self.over: list[Question] = []
        self._takes_s = takes_s
        self._numbers = iter(range(10**9))

    def send(self, call: Call) -> None:
        self.sent.append((self.clock.now(), call))
        call.sent()
        if self._takes_s is not None:
            self.alarm.at(self.clock.now() + self._takes_s, call.answered, OK)

    def abandon(self, call: Call) -> None:
        self.abandoned.append(call)

    def take(self) -> Exchange:
        return Exchange(b"request %d" % next(self._numbers))

    def start(self, loop: Loop) -> Started:
        return Started(loop.run(self.asker, self.take, self.over.append))

    def advance(self, seconds: float, step: float = 0.01) -> None:
        """Move on in small steps, as time does."""
        for _ in range(round(seconds / step)):
            self.loop.advance(step)

    def times(self) -> list[float]:
        return [round(at, 6) for at, _ in self.sent]

    def answer(self, number: int, reply: Reply = OK) -> None:
        self.sent[number][1].answered(reply)

    def count_at(self, chosen: Callable[[float], bool]) -> int:
        return sum(chosen(at) for at, _ in self.sent)
