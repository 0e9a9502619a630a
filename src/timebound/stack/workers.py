"""nginx's own processes: which of them take new requests.

A reload starts new ones and has the old ones finish what they have. Until an old one knows that, it takes requests and
gives them to the servers that it knows of, whoever has left since.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LEAVES = b"shutting down"
"""nginx renames a process that takes nothing any more: `nginx: worker process is shutting down`."""
_PROC = Path("/proc")


def children(master: int) -> set[int]:
    """The processes that this one has started and that live."""
    return {int(name) for name in os.listdir(_PROC) if name.isdecimal() and _parent(name) == master}


def takes_requests(worker: int) -> bool:
    """Whether this process of nginx is there and was not told to leave."""
    with suppress(OSError):
        words = (_PROC / str(worker) / "cmdline").read_bytes()
        return bool(words) and _LEAVES not in words  # one that has ended has no words
    return False


def _parent(name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / name / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
