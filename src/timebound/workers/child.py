"""One worker process as the gateway holds it: its control channel and the gateway's ends of its sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from timebound.errors import SetupError
from timebound.workers import wire
from timebound.workers.spawn import Process

log = logging.getLogger("timebound.workers")

# Math libraries start a thread per core each, in every worker, unless told not to.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Control(asyncio.Protocol):
    """The worker's life: `on_frame` gets what it says, `on_close` is called once when it is gone."""

    def __init__(self, on_frame: Callable[[wire.Head], None], on_close: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_close = on_close
        self._reader = wire.FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for head, _ in self._reader.feed(data):
            self._on_frame(head)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_close()

    def send(self, head: wire.Head) -> None:
        """Tell the worker something; ignored if it is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(wire.encode(head))


class Child:
    """Started by `start`; `ready` resolves when it has loaded, or fails with the sentence to tell."""

    def __init__(self, number: int, sockets: int) -> None:
        self.number = number
        self.ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.control = Control(self._on_frame, self._on_close)
        self._pairs = [wire.socket_pair() for _ in range(1 + sockets)]
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0 before it is started."""
        return self._process.pid if self._process else 0

    async def start(self, load: wire.Load) -> None:
        """Start the process and tell it what to load."""
        theirs = [pair[1] for pair in self._pairs]
        numbers = [end.fileno() for end in theirs]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        for variable in THREAD_VARIABLES:
            environment.setdefault(variable, str(load.threads))
        command = [sys.executable, "-m", "timebound.workers.process", *map(str, numbers)]
        self._process = Process(command, environment, keep=numbers)
        try:
            await self._process.start()
        except OSError:
            for end in (end for pair in self._pairs for end in pair):
                end.close()
            raise
        # Below the gateway, from its first instruction on: with both cores busy the gateway's event loop then waits
        # 0.1 ms (p99) for a core, not 3.6 ms, and a worker that starts is the busiest of all.
        with suppress(ProcessLookupError):
            base = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self.pid, min(19, base + load.niceness))
        for end in theirs:
            end.close()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.control, sock=self._pairs[0][0])
        self.control.send(load)

    def take_sockets(self, count: int) -> list[socket.socket]:
        """The gateway's ends of the first `count` sockets, the caller's from now on; the others are closed."""
        ours = [pair[0] for pair in self._pairs[1:]]
        self._pairs = []
        for unused in ours[count:]:
            unused.close()
        return ours[:count]

    async def gone(self) -> int | None:
        """Wait until the process has ended; its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        self.take_sockets(0)
        return code

    async def reap(self, patience_s: float = 5.0) -> None:
        """Wait for the process to end, and kill it when patience is over."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End the process now."""
        if self._process is not None:
            self._process.kill()

    def _on_frame(self, head: wire.Head) -> None:
        if self.ready.done():
            return
        if isinstance(head, wire.Ready):
            self.ready.set_result(head)
        elif isinstance(head, wire.Failed):
            log.debug("worker %d failed to load\n%s", self.number, head.trace)
            self.ready.set_exception(SetupError(head.sentence))

    def _on_close(self) -> None:
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
