"""Watches whether this machine stands still, and how long a process that could run waits for a core.

The watcher is a process that sleeps a little, again and again, and notes how late it wakes. It asks for next to
nothing, at the priority of the process beside it: when it waits for a core, the machine is too busy for both. It
also reads, from the kernel's own account, how long the threads of that process were ready to run and had no core.
"""

import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

SLEEP_S = 0.004
NOTED_S = 0.004
"""Shorter waits are not noted."""
_MOST_LOOKS = 2000


def watch(pid: int) -> None:
    """Print when it woke, how late that was, and how long the other ran and waited since the last line; for ever."""
    other, own = (os.getpriority(os.PRIO_PROCESS, each) for each in (pid, 0))
    os.setpriority(os.PRIO_PROCESS, 0, max(other, own))
    threads = [Thread(path) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    told = _account(threads)
    while True:
        due = time.monotonic() + SLEEP_S
        time.sleep(SLEEP_S)
        now = time.monotonic()
        ran_s, waited_s = _account(threads)
        if now - due > NOTED_S or waited_s - told[1] > NOTED_S:
            print(f"{now:.6f} {now - due:.6f} {waited_s - told[1]:.6f} {ran_s - told[0]:.6f}", flush=True)
            told = ran_s, waited_s


class Thread:
    """The kernel's account of one thread, the last one when it has ended."""

    def __init__(self, schedstat: Path) -> None:
        self._file = os.open(schedstat, os.O_RDONLY)
        self._seen = 0.0, 0.0

    def read(self) -> tuple[float, float]:
        """Seconds it ran, and seconds it was ready to run and did not."""
        with suppress(ProcessLookupError):
            ran, waited, _ = os.pread(self._file, 100, 0).split()
            self._seen = int(ran) * 1e-9, int(waited) * 1e-9
        return self._seen


def _account(threads: Sequence[Thread]) -> tuple[float, float]:
    ran, waited = zip(*[thread.read() for thread in threads], strict=True)
    return sum(ran), sum(waited)


class Stillness:
    """The watcher beside a process, for the length of a `with` block; what it saw can be asked then and later."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, float, float, float]] = []
        self.cpu_s = 0.0
        """What the process has used of a core."""

    def beside(self, pid: int) -> Self:
        """Watch this process from `with` on."""
        self._pid = pid
        return self

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()  # closed in __exit__
        command = [sys.executable, "-S", str(Path(__file__).resolve()), str(self._pid)]
        self._process = subprocess.Popen(command, stdout=self._output)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def read(self) -> None:
        """Take in what was seen so far."""
        self.cpu_s = int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]) * 1e-9
        # Without seeking: the watcher writes at the same file position.
        file = self._output.fileno()
        rows = [line.split() for line in os.pread(file, os.fstat(file).st_size, 0).splitlines(keepends=True)]
        whole = [tuple(map(float, row)) for row in rows if len(row) == 4]
        self._looks = [(woke, late_s, waited_s, ran_s) for woke, late_s, waited_s, ran_s in whole]

    def longest_s(self, start: float = 0.0, end: float = float("inf")) -> float:
        """The longest time the watcher itself waited for a core between two points in time."""
        return max((late_s for woke, late_s, _, _ in self._from(start) if woke - late_s < end), default=0.0)

    def waited_s(self, start: float, end: float) -> float:
        """How long the process beside it was ready to run and had no core."""
        return sum(waited_s for woke, _, waited_s, _ in self._from(start) if woke < end + SLEEP_S)

    def ran_s(self, start: float, end: float) -> float:
        """How long it ran."""
        return sum(ran_s for woke, _, _, ran_s in self._from(start) if woke < end + SLEEP_S)

    def _from(self, start: float) -> list[tuple[float, float, float, float]]:
        """What was seen from a point in time on, for as long as a request lives at most."""
        first = bisect_left(self._looks, (start, 0.0, 0.0, 0.0))
        return self._looks[first : first + _MOST_LOOKS] if start else self._looks


if __name__ == "__main__":
    watch(int(sys.argv[1]))
