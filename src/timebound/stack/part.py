"""One program of a stack: started again if it ends unasked, and stopped when it is asked to."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from timebound.clock import Clock
from timebound.errors import SetupError
from timebound.stack.ports import has_port

log = logging.getLogger("timebound.stack")

_LOOK_EVERY_S = 0.05
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_STEADY_S = 5.0
"""A program that ran for so long ends a row of quick ends."""


class Part:
    """A program, and how to see that it is there. What it writes goes where ours goes.

    If it has a `port`, an answer from there counts once the port is this program's: another's server may answer too.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        is_there: Callable[[], Awaitable[bool]],
        clock: Clock,
        port: int | None = None,
        farewell: signal.Signals = signal.SIGTERM,
        cores: set[int] | None = None,
    ) -> None:
        self.name = name
        self._command = _tied_to_us(command)
        self._is_there = is_there
        self._clock = clock
        self._port = port
        self._farewell = farewell
        self._cores = cores
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_leaving = False

    @property
    def pid(self) -> int | None:
        """Of its process now; None while it has none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Return when it is there; raises `SetupError` if it ends before that."""
        process = await self._spawn()
        is_its_port = False
        while not (is_its_port and await self._is_there()):
            if process.returncode is not None:
                raise SetupError(f"{self.name} {_how(process.returncode)} while it started; its lines above say why")
            await asyncio.sleep(_LOOK_EVERY_S)
            is_its_port = is_its_port or self._has_its_port(process.pid)  # once: the system's list of sockets is long
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self, patience_s: float) -> None:
        """Ask it to leave and wait for that; who does not leave in time is killed."""
        self._is_leaving = True
        if self._keeper is not None:
            self._keeper.cancel()
        self.signal(self._farewell)
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            log.error("%s did not stop in time and was killed", self.name)
            self.kill()
            await self._process.wait()
        _end_rest(self._process.pid)

    def kill(self) -> None:
        """End it now."""
        self._is_leaving = True
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.pid is not None:
            os.kill(self.pid, number)

    def _has_its_port(self, pid: int) -> bool:
        return self._port is None or has_port(pid, self._port)

    async def _spawn(self) -> asyncio.subprocess.Process:
        # In a session of its own: Ctrl-C in a terminal must reach us alone, who know the order in which to stop.
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self._process = process
        if self._cores:
            os.sched_setaffinity(process.pid, self._cores)
        return process

    async def _keep(self) -> None:
        """Start it again whenever it ends unasked; after quick ends in a row a little later each time."""
        quick_ends = 0
        while not self._is_leaving:
            assert self._process is not None
            started = self._clock.now()
            code = await self._process.wait()
            _end_rest(self._process.pid)
            quick_ends = 0 if self._clock.now() - started > _STEADY_S else quick_ends + 1
            pause_s = min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(quick_ends, 10))
            log.warning("%s %s; it is started again", self.name, _how(code))
            await asyncio.sleep(pause_s)
            await self._spawn()


def _end_rest(group: int) -> None:
    """End whom a part that has ended left behind: nginx's workers outlive their killed master and keep its port."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _tied_to_us(command: Sequence[str]) -> list[str]:
    """The command as a process that ends with ours, however ours ends."""
    tie = shutil.which("setpriv")
    # The tie tells of our end only from then on: if we have ended before, the command has another parent already.
    # And a reload that is asked for before it listens for that must not end it: it reads everything newly anyway.
    still_ours = ["sh", "-c", 'trap "" HUP; [ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    return [tie, "--pdeathsig", "TERM", "--", *still_ours, *command] if tie else list(command)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
