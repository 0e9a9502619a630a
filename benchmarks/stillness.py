"""Watches whether this machine stands still: a process that sleeps a little, again and again, notes how late it wakes.

It asks for next to nothing, at the priority of the gateway beside it. When it waits for a core, so does everyone.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

SLEEP_S = 0.004
NOTED_S = 0.004
"""Later than this is noted."""


def watch() -> None:
    """Print when it woke and how late that was, whenever it was late; until it is killed."""
    while True:
        due = time.monotonic() + SLEEP_S
        time.sleep(SLEEP_S)
        now = time.monotonic()
        if now - due > NOTED_S:
            print(f"{now:.6f} {now - due:.6f}", flush=True)


class Stillness:
    """The watcher, for the length of a `with` block; what it saw can be asked then and later."""

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()  # closed in __exit__
        command = [sys.executable, "-S", str(Path(__file__).resolve())]
        self._process = subprocess.Popen(command, stdout=self._output)
        self._gaps: list[tuple[float, float]] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._gaps = self.gaps()
        self._output.close()

    def gaps(self) -> list[tuple[float, float]]:
        """When it woke late, on the monotonic clock, and by how many seconds."""
        if self._output.closed:
            return self._gaps
        # Without seeking: the watcher writes at the same file position.
        file = self._output.fileno()
        lines = os.pread(file, os.fstat(file).st_size, 0).splitlines()
        return [(float(line.split()[0]), float(line.split()[1])) for line in lines if line.count(b" ") == 1]

    def longest_s(self, start: float, end: float) -> float:
        """The longest time it waited for a core between two points in time."""
        return max((late_s for woke, late_s in self.gaps() if woke > start and woke - late_s < end), default=0.0)


if __name__ == "__main__":
    watch()
