"""When a worker has grown too large, too old or too busy, and is replaced by a fresh one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from timebound.workers.crew import Worker

LOOK_EVERY_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Recycling(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on one worker; None is no limit."""

    memory_bytes: int | None = None
    after_s: float | None = None
    requests: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is any limit."""
        return (self.memory_bytes, self.after_s, self.requests) != (None, None, None)

    def why(self, worker: Worker, now: float) -> str | None:
        """Which limit a worker has passed."""
        if self.memory_bytes is not None and (held := memory_of(worker.child.process.pid)) > self.memory_bytes:
            return f"it holds {held / 1e6:.0f} MB"
        if self.after_s is not None and now - worker.since > self.after_s:
            return f"it is {now - worker.since:.0f} s old"
        if self.requests is not None and worker.items > self.requests:
            return f"it was given {worker.items} requests"
        return None


def memory_of(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
