"""One worker process as the gateway holds it: its control channel and the gateway's ends of its sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from timebound.errors import SetupError
from timebound.types import Measured
from timebound.workers import messages, wire
from timebound.workers.early import Early, command, environment_of
from timebound.workers.spawn import Process

log = logging.getLogger("timebound.workers")

_MOST_LIMITS = 6
"""Who says again and again how far it is may take so many times --load-timeout altogether."""
FAREWELL_S = 5.0
"""A process that was asked to leave and is still there then is killed: a thread of the user's may hold it for ever."""


class Child(wire.Channel):
    """Started by `start`; `ready` resolves when it has loaded, or fails with the sentence to tell."""

    def __init__(
        self,
        number: int,
        load: messages.Load,
        output: Mapping[int, int],
        gpu: int | None = None,
        early: Early | None = None,
    ) -> None:
        """`gpu` is the place of its own among the plan's; `early` is a process that it may turn out to be."""
        super().__init__()
        self.number = number
        self.gpu = gpu
        self.on_measures: Callable[[list[Measured]], None] = lambda rows: None
        """Gets what its handlers measure."""
        self.ready: asyncio.Future[messages.Ready] = asyncio.get_running_loop().create_future()
        self._load = load
        self.progress = ""
        """What it last said of how far it is."""
        self._limit: asyncio.TimerHandle | None = None
        self._last_limit = 0.0
        self._pairs = [wire.socket_pair() for _ in range(1 + load.max_slots)]
        self._output = output
        numbers = [pair[1].fileno() for pair in self._pairs]
        environment = environment_of(load.plan, load.threads, gpu)
        self._early = early if early is not None and early.claim(environment, load.max_slots) else None
        pid = 0
        if self._early is not None:
            pid = self._early.pid
            self._pairs[0][0].close()
            self._pairs[0] = (self._early.control, self._pairs[0][1])
        self.process = Process(command(*numbers), environment, keep=numbers, files=output, pid=pid)

    async def start(self) -> None:
        """Start the process and tell it what to load, which may take it so long and no longer."""
        try:
            await self.process.start()
            await self._begin()
        except BaseException:  # also for who is cancelled meanwhile
            self.process.kill()
            for end in (end for pair in self._pairs for end in pair):
                end.close()
            raise

    async def _begin(self) -> None:
        # Below the gateway, from its first instruction on: with both cores busy the gateway's event loop then waits
        # 0.1 ms (p99) for a core, not 3.6 ms, and a worker that starts is the busiest of all.
        with suppress(ProcessLookupError):
            base = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self.process.pid, min(19, base + self._load.niceness))
        if self._early is not None:
            self._early.hand_over(self._output, [theirs.fileno() for _, theirs in self._pairs[1:]])
        for _, theirs in self._pairs:
            theirs.close()
        await self.open(self._pairs[0][0])
        self.send(self._load)
        limit_s, loop = self._load.plan.load_timeout_s, asyncio.get_running_loop()
        self._last_limit = loop.time() + _MOST_LIMITS * limit_s
        self._limit = loop.call_later(limit_s, self._give_up)
        self.ready.add_done_callback(lambda _: self._limit.cancel() if self._limit else None)

    def _go_on(self, sentence: str) -> None:
        """It gets on: the limit counts anew from here."""
        self.progress, loop = sentence, asyncio.get_running_loop()
        if self._limit is not None:
            self._limit.cancel()
            until = min(loop.time() + self._load.plan.load_timeout_s, self._last_limit)
            self._limit = loop.call_at(until, self._give_up)

    def _give_up(self) -> None:
        if not self.ready.done():
            limit_s, said = self._load.plan.load_timeout_s, f"; it last said: {self.progress}" if self.progress else ""
            why = f"a worker had not loaded and answered its warm-up run after {limit_s:g} s (--load-timeout){said}"
            self.ready.set_exception(SetupError(why))
        self.process.kill()

    def leave(self) -> None:
        """Ask it to leave; if it has not done so after a while it is killed."""
        self.send(messages.Stop())
        asyncio.get_running_loop().call_later(FAREWELL_S, self.process.kill)

    def take_sockets(self, count: int) -> list[socket.socket]:
        """The gateway's ends of the first `count` sockets, the caller's from now on; the others are closed."""
        ours = [pair[0] for pair in self._pairs[1:]]
        self._pairs = []
        for unused in ours[count:]:
            unused.close()
        return ours[:count]

    async def gone(self) -> int | None:
        """Wait until the process has ended; its exit code."""
        code = await self.process.wait()
        self.take_sockets(0)
        return code

    async def reap(self, patience_s: float = 5.0) -> None:
        """Wait for the process to end, and kill it when patience is over."""
        try:
            await asyncio.wait_for(self.process.wait(), patience_s)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def receive(self, head: messages.Head, body: memoryview) -> None:
        if isinstance(head, messages.Measures):
            self.on_measures(head.rows)
        if self.ready.done():
            return
        if isinstance(head, messages.Progress):
            self._go_on(head.sentence)
        elif isinstance(head, messages.Ready):
            self.ready.set_result(head)
        elif isinstance(head, messages.Failed):
            log.debug("worker %d failed to load\n%s", self.number, head.trace)
            self.ready.set_exception(SetupError(head.sentence))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(SetupError("the worker process ended before it was ready; see its output above"))
        if not self.ready.cancelled():
            self.ready.exception()  # seen: a worker that dies while stopping has nobody waiting for this


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped this process (SIGSTOP)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
