"""Starts a server, waits for its first right answer, weighs its processes, and leaves no orphan."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from timebound.lab.load.processes import process_tree, stat_of, tree_pss_mib

POLL_S = 0.005
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0


class StartError(Exception):
    """A server under test did not start; the message holds the end of what it said."""


class Absent(Exception):
    """Something that a part of a benchmark needs is not on this machine; the message says what, and how to get it."""


class Server:
    """One server under test as a context manager: started and answering inside, gone outside.

    It stays in the session of the benchmark, so that all contestants are scheduled in one autogroup, but
    gets its own process group, so that Ctrl-C reaches the benchmark alone, which then stops it in order.
    With `is_apart` it gets a session of its own, as a server that was started for itself has: then what it gets of a
    busy machine does not depend on what its client takes. `folder` is where it is started, if not here.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        answers: Callable[[], bool],
        *,
        is_apart: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self._folder = folder
        self._is_apart = is_apart
        self.first_answer_s = 0.0
        self._command = list(command)
        self._env = {**os.environ, **env}
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()

    def __enter__(self) -> "Server":
        started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                process_group=None if self._is_apart else 0,
                start_new_session=self._is_apart,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - the benchmark has no threads
            )
            self._wait_for_answer(started + START_TIMEOUT_S)
        except OSError as error:
            raise StartError(f"{self.name} cannot be started: {error}") from error
        except BaseException:
            self.stop()
            raise
        self.first_answer_s = time.perf_counter() - started
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that was started."""
        assert self._process is not None
        return self._process.pid

    def pss_mib(self) -> float:
        """Memory of the whole tree; pages shared between processes count once."""
        return tree_pss_mib(self._process.pid) if self._process else 0.0

    def process_count(self) -> int:
        """How many processes the server consists of."""
        return len(self._tree())

    def complaints(self) -> list[str]:
        """Lines the server printed that are no plain information."""
        return [line for line in self._text().splitlines() if line.strip() and '"level":"info"' not in line]

    def stop(self) -> None:
        """Ask the server to leave, then end whatever is left of its tree."""
        if self._process is None:
            return
        family = {pid: _started_at(pid) for pid in self._tree()}
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        for pid, born in family.items():
            # The start time tells a survivor from a stranger who was given its number.
            if born is not None and _started_at(pid) == born:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._output.close()

    def _tree(self) -> list[int]:
        return process_tree(self._process.pid) if self._process else []

    def _wait_for_answer(self, give_up: float) -> None:
        assert self._process is not None
        while not self._answers():
            code = self._process.poll()
            if code is not None:
                raise StartError(f"{self.name} ended with exit code {code} before its first answer.\n{self._said()}")
            if time.perf_counter() > give_up:
                raise StartError(f"{self.name} gave no right answer in {START_TIMEOUT_S:.0f} s.\n{self._said()}")
            time.sleep(POLL_S)

    def _said(self) -> str:
        return "\n".join(self._text().strip().splitlines()[-15:]) or "It printed nothing."

    def _text(self) -> str:
        # Without seeking: the server writes at the same file position.
        file = self._output.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


def _started_at(pid: int) -> str | None:
    stat = stat_of(pid)
    return stat[19] if stat and stat[0] != "Z" else None


def die_with_parent() -> None:
    """To be called in a child: should the thread that started it end, and with it its program, it is told to leave."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_PR_SET_PDEATHSIG = 1
