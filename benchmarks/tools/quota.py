"""A control group that may use so many cores, as `docker run --cpus` makes one."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.tools.processes import StartError

_TOP = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_EMPTY_S = 5.0


class CoreQuota:
    """The group for the length of a `with` block, in version 1 or 2 as this system has it. Needs root."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._is_second = (_TOP / "cgroup.controllers").exists()
        self._folder = (_TOP if self._is_second else _TOP / "cpu") / f"timebound-ship-{os.getpid()}"

    def __enter__(self) -> Self:
        quota = int(self._cores * _PERIOD_US)
        try:
            self._folder.mkdir()
            if self._is_second:
                (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._folder / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            self.__exit__()
            raise StartError(f"no control group can be made here (that needs root): {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + _EMPTY_S
        while self._folder.exists():
            with suppress(OSError):
                self._folder.rmdir()
                return
            if time.monotonic() > end:  # what was started in it is ours
                for line in (self._folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)
            time.sleep(0.02)

    def inside(self, *command: str) -> list[str]:
        """The command, to be run in this group."""
        return ["sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$@"', "sh", *command]
