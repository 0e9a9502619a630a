"""Processes of one's own: `timebound serve` on a free port while it is needed, and programs that find something out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any
from urllib.parse import urlsplit

from timebound.errors import SetupError
from timebound.workers.early import THREAD_VARIABLES

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 40.0
_LAST_WORDS = 15


@dataclass(frozen=True)
class Served:
    """A server that is ready, and its first process."""

    url: str
    pid: int


@contextmanager
def serving(
    target: Path, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """A server for `target`, once it is ready; raises `SetupError` with its words if it does not start.

    It has our environment, and these `variables` besides.
    """
    flags = ["--port", "0", "--log-format", "json", "--log-level", "info", *arguments]
    # Whoever dies lets go of its end, by kill -9 too. A signal at the parent's death would come at that of its thread.
    tether, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "timebound.cli.tethered", str(tether), "serve", str(target), *flags],
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the one who measures; the server is stopped after that
            pass_fds=[tether],
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(tether)
    said: deque[str] = deque(maxlen=_LAST_WORDS)
    urls: SimpleQueue[str | None] = SimpleQueue()
    listener = threading.Thread(target=_listen, args=(process.stderr, said, urls), daemon=True)
    listener.start()
    try:
        yield Served(_url(said, urls), process.pid)
    finally:
        _stop(process)
        os.close(ours)
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


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask it to leave, and see to it that it does."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process and whatever is left of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Ended:
    """What a program found until it ended, and the last line of all else that was printed meanwhile."""

    found: list[bytes]
    code: int | None
    """None if it took too long, and was ended."""
    last_line: str


def run_program(module: str, *arguments: str, threads: int = 1, timeout_s: float | None = None) -> Ended:
    """Run a module in a process of its own, in which libraries use so many threads, until it ends.

    Its last argument is a file that takes what it finds, line by line (`lab/curve.py` writes them): the user's code,
    which it runs, may print.
    """
    # Files and not pipes: nobody reads before it is over.
    with tempfile.TemporaryFile() as noise, tempfile.TemporaryFile() as found:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(found.fileno())],
            env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))},
            pass_fds=[found.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            start_new_session=True,  # whatever the model starts is ended with it
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        for file in (noise, found):
            file.seek(0)
        lines = noise.read().decode(errors="replace").strip().splitlines()
        return Ended(found.read().splitlines(), code, lines[-1] if lines else f"its process ended with code {code}")
