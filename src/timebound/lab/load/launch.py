"""Processes of one's own: `timebound serve` on a free port while it is needed, and programs that write lines."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO
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
    said: deque[str] = deque(maxlen=_LAST_WORDS)
    urls: SimpleQueue[str | None] = SimpleQueue()
    listener = threading.Thread(target=_listen, args=(process.stderr, said, urls), daemon=True)
    listener.start()
    try:
        yield Served(_url(said, urls), process.pid)
    finally:
        _stop(process)
        listener.join(STOP_TIMEOUT_S)


def _listen(lines: IO[str], said: deque[str], urls: SimpleQueue[str | None]) -> None:
    """Read what the server says, so that it never waits for a reader; its URL, or None at the end, is told."""
    with lines:
        for line in lines:
            said.append(line.rstrip())
            if '"message":"ready"' in line:
                with suppress(ValueError, KeyError):
                    place = urlsplit(json.loads(line)["at"])
                    urls.put(f"{place.scheme}://{place.netloc}")
    urls.put(None)


def _url(said: deque[str], urls: SimpleQueue[str | None]) -> str:
    try:
        url = urls.get(timeout=START_TIMEOUT_S)
    except Empty:
        raise SetupError(
            f"the server was not ready after {START_TIMEOUT_S:g} s; start it yourself and give its URL"
        ) from None
    if url is None:
        words = "\n".join(line for line in said if not line.startswith("{")) or "\n".join(said)
        raise SetupError(f"the server did not start: {words.removeprefix('timebound: ')}")
    return url


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


def lines_of(module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """What a module writes, run in a process of its own; raises `SetupError` with its last words if it breaks down."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise SetupError(words[-1] if words else f"its process ended with code {done.returncode}")
    return done.stdout.splitlines()
