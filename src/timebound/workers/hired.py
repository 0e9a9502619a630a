"""A hand as its worker sees it, and what it is given."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from timebound.types import Loss, Outcome

_WAITS = "RD"
"""For a core, or for a disk: nothing that it could do about it."""
_COMPUTES, _PATIENCE = 0.5, 10.0
"""One that runs must also have computed for this share of that time, or have been given so many times more."""


class Order:
    """One batch while it is prepared: what hands said of it, by place."""

    def __init__(self, slot: int, model: str, *, hang_s: float, is_suspect: bool) -> None:
        self.slot = slot
        self.model = model
        self.hang_s = hang_s
        """A hand may be at one item for so long at least."""
        self.is_suspect = is_suspect
        """Whether one of its items may have killed a worker."""
        self.left = 0
        """Parts that are not done."""
        self.outcomes: dict[int, Outcome] = {}
        """Of refused items."""
        self.odd: list[int] = []
        """Items to be prepared in the worker."""
        self.killers: dict[int, list[Loss]] = {}
        """Items that hands died of, and how."""
        self.deaths: dict[int, list[Loss]] = {}
        self.news = threading.Event()


class Part:
    """Some items of an order, for one hand: (offset and length of the body, place)."""

    def __init__(self, order: Order, items: Sequence[tuple[int, int, int]]) -> None:
        self.order = order
        self.items = list(items)

    @property
    def is_risky(self) -> bool:
        """Whether a hand has died of it before."""
        return bool(self.order.deaths) and any(place in self.order.deaths for _, _, place in self.items)


class Hired:
    """A hand as its worker sees it."""

    def __init__(self, number: int, sock: socket.socket, pid: int) -> None:
        self.number = number
        self.sock = sock
        self.pid = pid
        self.end = _end_of(pid)
        """A file that is readable once it has ended: what it has started itself may keep its socket open."""
        self.parts: deque[Part] = deque()
        """What it is at, and perhaps the next one."""
        self.given = 0.0
        """When it could begin with what it is at."""
        self.is_up = False
        self.ended_as: Loss | None = None
        self.seen: tuple[float, float] | None = None
        """At the first suspicious look: since when it was at its item, and the seconds of a core it had used."""

    def hangs(self, since: float, now: float, limit_s: float) -> bool:
        """Whether it has been at one item for too long, by its own doing; it is looked at twice before that is said."""
        if now - since < limit_s:
            return False
        state, used_s = _state_of(self.pid)
        if self.seen is None or self.seen[0] != since:
            self.seen = since, used_s
            return False
        has_computed = used_s - self.seen[1] >= _COMPUTES * limit_s
        return state not in _WAITS or has_computed or now - since >= _PATIENCE * limit_s

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP)."""
        return _state_of(self.pid)[0] in "Tt"

    def kill(self, loss: Loss) -> None:
        """End it, and remember as what."""
        self.ended_as = loss
        os.kill(self.pid, signal.SIGKILL)


def _end_of(pid: int) -> int | None:
    """A file that says when a process has ended; None where the system has no such files."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _state_of(pid: int) -> tuple[str, float]:
    """What the kernel says a process does, by its letter, and the seconds of a core that it has used."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0.0
    return state, sum(map(int, rest[10:12])) / os.sysconf("SC_CLK_TCK")
