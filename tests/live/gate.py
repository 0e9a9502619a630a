"""A gate that a test holds shut while models in other processes wait at it; no polling on either side."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Self


class Gate:
    """Shut from the start. It is a lock on a file, so it opens by itself if the test dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: IO[str] | None = None
        self.shut()

    def shut(self) -> None:
        """Let nobody through from now on."""
        held = self.path.open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        self._held = held

    def open(self) -> None:
        """Let everybody through who waits and who comes."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.open()
