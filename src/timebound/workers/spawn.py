"""Starts a process without holding up the event loop, and waits for its end.

`fork`, and the wait until the child has become another program, take 20 to 40 ms on a busy machine, and asyncio and
`subprocess` spend them with the loop, or the interpreter, standing still: longer than what is kept free before
deadlines. Here a thread does it, as `launch.py` does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from _thread import start_new_thread
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from timebound.workers.launch import spawn

NEVER_RAN = 127
UNKNOWN = 255


class Process:
    """A child process."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        keep: Sequence[int],
        files: Mapping[int, int] = MappingProxyType({}),
        pid: int = 0,
    ) -> None:
        """It is to run `command` (its first word is a path) with the files `keep` open, under the same numbers.

        `files` says which of ours it gets as its 1 (stdout) or 2. With `pid` it is one that was started before.
        """
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, or the signal that ended it as a negative number; None while it lives."""
        self._arguments = (list(command), dict(environment), {**{number: number for number in keep}, **files})
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._reaping = threading.Lock()
        self._is_doomed = False

    async def start(self) -> None:
        """Start it; raises `OSError` if that cannot be done."""
        try:
            start_new_thread(self._live, self._arguments)  # `Thread.start` would wait until the thread runs
        except RuntimeError:
            self._ended.set_result(NEVER_RAN)
            raise OSError(errno.EAGAIN, "the system allows no more threads; raise its limit of processes") from None
        await asyncio.shield(self._started)

    async def wait(self) -> int:
        """Return when it has ended; its exit code."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """End it now, or as soon as it has been started; nothing happens if it has ended."""
        with self._reaping:  # its number is nobody else's until it is reaped
            self._is_doomed = True
            if self.returncode is None and self.pid:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ in its thread

    def _live(self, command: list[str], environment: dict[str, str], files: dict[int, int]) -> None:
        try:
            self.pid = self.pid or spawn(command, environment, files)
        except OSError as error:
            self._tell(partial(self._fail, error))
            return
        if self._is_doomed:
            self.kill()
        self._tell(partial(self._started.set_result, None))
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with self._reaping:
                _, status = os.waitpid(self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # somebody else took its exit code
            self.returncode = UNKNOWN
        self._tell(partial(self._ended.set_result, self.returncode))

    def _fail(self, error: OSError) -> None:
        self._ended.set_result(NEVER_RAN)
        if not self._started.cancelled():
            self._started.set_exception(error)
            self._started.exception()  # it is told to whoever awaits it; nobody may

    def _tell(self, news: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(news)
