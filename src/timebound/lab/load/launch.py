"""A server of one's own: `timebound serve` on a free port, up while it is needed, gone afterwards."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from timebound.errors import SetupError

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 40.0
_LAST_WORDS = 15
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Served:
    """A server that is ready, and its first process."""

    url: str
    pid: int


@contextmanager
def serving(target: Path, arguments: Sequence[str] = ()) -> Iterator[Served]:
    """A server for `target`, once it is ready; raises `SetupError` with its words if it does not start."""
    flags = ["--port", "0", "--log-format", "json", "--log-level", "info", *arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "timebound.cli", "serve", str(target), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the one who measures; the server is stopped after that
        preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread is running yet
    )
    listener = _Listener(process)
    try:
        yield Served(listener.url(), process.pid)
    finally:
        _stop(process)
        listener.join()


class _Listener:
    """Reads what the server says, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: deque[str] = deque(maxlen=_LAST_WORDS)
        self._is_decided = threading.Event()
        self._url: str | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def url(self) -> str:
        is_in_time = self._is_decided.wait(START_TIMEOUT_S)
        if self._url is not None:
            return self._url
        if not is_in_time:
            raise SetupError(
                f"the server was not ready after {START_TIMEOUT_S:g} s; start it yourself and give its URL"
            )
        words = "\n".join(line for line in self._said if not line.startswith("{")) or "\n".join(self._said)
        raise SetupError(f"the server did not start: {words.removeprefix('timebound: ')}")

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line.rstrip())
                if self._url is None and '"message":"ready"' in line:
                    with suppress(ValueError, KeyError):
                        place = urlsplit(json.loads(line)["at"])
                        self._url = f"{place.scheme}://{place.netloc}"
                        self._is_decided.set()
        self._is_decided.set()


def die_with_parent() -> None:
    """To be called in a child: should its parent be killed, it is told to leave."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask it to leave; whatever is left of its group is ended."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
