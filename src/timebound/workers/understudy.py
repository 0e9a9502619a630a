"""The gateway's side of the understudy: asks it for fallbacks, sizes and what may be kept, many in one frame."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeAlias

import msgspec

from timebound.types import Outcome
from timebound.workers import messages, wire
from timebound.workers.at_work import AtWork, nobody
from timebound.workers.messages import FALLBACK, REDACT, SIZE

PING = "ping"

Done: TypeAlias = Callable[[Outcome, float], None]

_MOST_WAITING = 4096
_MOST_BYTES = 64 << 20
"""Of bodies that were asked about and not yet answered: an understudy that stands still must not fill the memory."""

PATIENCE_S, _LOOKS = 1.0, 4
"""With a process that answers nothing at all, and how often it is looked in that time. Calls that take longer than a
twentieth of it do not hold up others in such a process, so it hangs."""

GONE = Outcome(b"", code="process_gone")
"""Of a call whose process has ended, or that was never sent because too much waits."""
ENDED, BESIDE = Outcome(b"", code="ended_process"), Outcome(b"", code="gone_beside")
"""Of the one whose code ran when its process ended, and of the others."""
_MOST_TIMES = 3
"""Processes that are asked for one call."""


class _Ask(msgspec.Struct):
    """A call that is to be answered."""

    call: messages.Call
    done: Done
    times: int = 0
    """Processes that were asked."""


class Understudy:
    """One process at a time; while it is away, or stands still, questions wait, up to a limit.

    Whoever asks has a guard of his own and will not wait for ever.
    """

    pings = False
    """Whether a process that is silent is asked if it is there, because its calls may take long."""
    asks_again = True
    """Whether the next process is asked what was left when a call of another ended this one; else who asked is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count(1)
        self._asks: dict[int, _Ask] = {}  # to be sent at the end of this turn, or when the next process is there
        self._unanswered = 0
        self._held_bytes = 0  # bodies of what is not answered yet
        self._talk: _Talk | None = None
        self._talks: list[_Talk] = []
        """That one, and those of processes that finish what they were asked."""

    def fallback(self, model: str, body: bytes, done: Callable[[Outcome | None], None]) -> None:
        """Ask for the model's fallback answer; `done` gets None if there is none to be had."""
        self._ask(FALLBACK, model, body, lambda outcome, _: done(None if outcome.code else outcome))

    def size(self, model: str, body: bytes, done: Callable[[float | None], None]) -> None:
        """Ask for the size of a request; `done` gets None if it cannot be told."""
        self._ask(SIZE, model, body, lambda outcome, size: done(None if outcome.code else size))

    def redact(self, model: str, body: bytes, done: Callable[[bytes | None], None]) -> None:
        """Ask what may be kept of a request; `done` gets None if nothing, or if it cannot be told."""
        self._ask(REDACT, model, body, lambda outcome, _: done(None if outcome.code else outcome.body))

    async def open(self, sock: socket.socket, on_hang: Callable[[], None], at_work: AtWork = nobody) -> None:
        """Take over the gateway's end of a new understudy's socket; one that was there before answers what it has.

        `on_hang` is called if it stops answering; `at_work` tells what it was at when it ended.
        """
        talk = _Talk(self._lost, on_hang, self._loop, at_work, pings=self.pings)
        await talk.open(sock)
        self._talk = talk
        self._talks.append(talk)
        if self._asks:
            self._flush()

    def tell(self, call: messages.Call) -> None:
        """Send what nobody waits for an answer of, to every process, behind what it was asked before."""
        if self._asks:
            self._flush()
        for talk in self._talks:
            talk.send(messages.Errand([call]))

    def take_back(self, number: int) -> bool:
        """Do not ask this after all; whether it was still to be asked."""
        ask = self._asks.pop(number, None)
        if ask is not None:
            ask.done(GONE, 1.0)
        return ask is not None

    def _lost(self, talk: _Talk, asks: dict[int, _Ask]) -> None:
        """A process has ended and left these unanswered."""
        self._talks.remove(talk)
        if talk is self._talk:
            self._talk = None
        ended = [number for number in talk.at_work() if number in asks]
        again = {n: ask for n, ask in asks.items() if ended and n not in ended and ask.times < _MOST_TIMES}
        if self.asks_again:
            self._asks = again | self._asks
            if self._talk is not None:  # after a reload it is there already
                self._flush()
        for number, ask in asks.items():
            if number in ended:
                ask.done(ENDED if len(ended) == 1 else GONE, 1.0)
            elif number not in again or not self.asks_again:
                ask.done(BESIDE if number in again else GONE, 1.0)

    def _ask(self, duty: str, model: str, body: bytes, done: Done) -> int:
        """Have a call sent; its number, or 0 if `done` has been told already that it cannot be."""
        is_full = self._unanswered >= _MOST_WAITING
        if is_full or (self._held_bytes and self._held_bytes + len(body) > _MOST_BYTES):
            done(GONE, 1.0)
            return 0
        self._unanswered += 1
        self._held_bytes += len(body)
        if not self._asks and self._talk is not None:
            self._loop.call_soon(self._flush)  # what is asked in one turn of the loop goes in one frame
        call = messages.Call(next(self._numbers), duty, model, body)
        self._asks[call.number] = _Ask(call, partial(self._done, len(body), done))
        return call.number

    def _done(self, size: int, done: Done, outcome: Outcome, value: float) -> None:
        self._unanswered -= 1
        self._held_bytes -= size
        done(outcome, value)

    def _flush(self) -> None:
        if self._talk is not None and self._asks:
            asks, self._asks = self._asks, {}
            self._talk.ask(asks)


class _Talk(wire.Channel):
    """The questions to one process, until it is gone."""

    def __init__(
        self,
        on_lost: Callable[[_Talk, dict[int, _Ask]], None],
        on_hang: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        at_work: AtWork,
        *,
        pings: bool,
    ) -> None:
        super().__init__()
        self.at_work = at_work
        self._pings = pings
        self._on_lost = on_lost
        self._on_hang = on_hang
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # set while something is unanswered
        self._heard = self._silent = 0
        self._away: dict[int, _Ask] = {}

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        lost, self._away = self._away, {}
        self._on_lost(self, lost)

    def data_received(self, data: bytes) -> None:
        self._heard += 1
        super().data_received(data)

    def receive(self, head: messages.Head, body: memoryview) -> None:
        assert isinstance(head, messages.ErrandDone)
        if head.number:  # else it says that it is there
            self._away.pop(head.number).done(head.outcome, head.size)

    def ask(self, asks: dict[int, _Ask]) -> None:
        self._away |= asks
        for ask in asks.values():
            ask.times += 1
        self.send(messages.Errand([ask.call for ask in asks.values()]))
        if self._timer is None:
            self._silent = 0
            self._watch()

    def _watch(self) -> None:
        if self._pings:
            self.send(messages.Errand([messages.Call(0, PING, "", b"")]))
        self._timer = self._loop.call_later(PATIENCE_S / _LOOKS, self._look, self._heard)

    def _look(self, heard: int) -> None:
        """It has had a while. If it said nothing in all that time, it hangs."""
        self._timer = None
        if not self._away:
            return
        self._silent = self._silent + 1 if heard == self._heard else 0
        if self._silent >= _LOOKS:
            self._on_hang()
        else:
            self._watch()
