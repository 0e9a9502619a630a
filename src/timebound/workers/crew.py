"""Workers as the supervisor keeps them: a child process, its slots, its generation, and when it has had its day."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec

from timebound.types import Loss, ModelInfo
from timebound.workers import messages
from timebound.workers.at_work import AtWork, nobody
from timebound.workers.child import Child, is_stopped
from timebound.workers.messages import Role
from timebound.workers.slots import Dispatch, Slot

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Generation:
    """Workers that loaded the target at one time. A reload makes a new one; the old one leaves when that is up."""

    def __init__(self, number: int, plan: messages.WorkerPlan) -> None:
        self.number = number
        self.plan = plan
        self.models: list[ModelInfo] = []
        self.wanted = 1
        """How many workers there are to be; one until it is known how many slots each has."""
        self.slots = 1
        """Of each of its workers."""
        self.beside: list[Role] = []
        """Who is needed beside its workers, one of each: the understudy, the fetcher."""
        self.fetched: dict[str, bytes] = {}
        """By model, its example with what `fetch` gave for it: only the first worker asks the world for that."""
        self.awaited = dict.fromkeys(Role, 0)
        """Who is about to be started, after a pause."""
        self.doors = asyncio.Event()
        """Open when its workers may take batches: the first is loaded, and whoever stands in for the model."""
        self.is_leaving = False


class Worker:
    """A child that serves batches, or stands beside those that do."""

    def __init__(self, child: Child, generation: Generation, role: Role) -> None:
        self.child = child
        self.generation = generation
        self.role = role
        self.slots: list[Slot] = []
        self.is_up = False
        self.is_leaving = False
        """It was asked to leave when it is done; nobody is missing when it is gone."""
        self.is_spare = False
        """It is to take over from another one, and has not yet: if it fails, nobody is missing."""
        self.since = 0.0
        """When it came up."""
        self.device_bytes = 0
        """What warming it up took of its device's memory."""
        self.at_work: AtWork = nobody
        """What it was at last, if it stands beside the others."""
        self.is_lost = False
        self._hung_as: Loss | None = None
        self.connected = asyncio.Event()
        """Set when its slots could take batches, or never will."""

    def open_slots(self, count: int, dispatch: Dispatch) -> None:
        """Make its slots; when one of them is lost the worker is, and all go down together."""

        def on_lost() -> None:
            self.is_lost = True
            if self.is_up or not self.is_leaving:
                self.child.process.kill()  # if it lives, it is out of step; the next one is not
            if self.is_up:
                self.is_up = False
                # No more batches; what becomes of those it ran depends on how it ended, which is known in a moment.
                dispatch.retire(self.slots, lambda: None)

        number = self.child.number
        self.slots = [
            Slot(number, place, count, dispatch, on_lost=on_lost, on_hang=self.hang) for place in range(count)
        ]

    def come_up(self, dispatch: Dispatch) -> None:
        """Take batches from now on."""
        if not self.is_lost and not self.is_up and not self.is_leaving and self.slots:
            self.is_up = True
            for slot in self.slots:
                dispatch.slot_up(slot)

    def hang(self) -> None:
        """A batch takes far too long: end the process."""
        self._hung_as = Loss.STOPPED if is_stopped(self.child.process.pid) else Loss.HUNG
        self.child.process.kill()

    def loss(self, code: int | None) -> Loss:
        """How it was lost, if it ended with this exit code."""
        if self._hung_as is not None:
            return self._hung_as
        if code == messages.DEVICE_LOST:
            return Loss.DEVICE
        return Loss.KILLED if code == -signal.SIGKILL else Loss.CRASHED

    def retire(self, dispatch: Dispatch) -> None:
        """Give it no more batches, and let it go when those it runs are done."""
        if self.is_leaving:
            return
        self.is_leaving = True
        if not self.is_up:
            self.child.process.kill()  # it has loaded nothing yet, or stands at the door: nothing is lost
        elif self.role is not Role.WORKER:
            self.child.leave()  # the next one has taken over; it leaves when its calls are done
        else:
            dispatch.retire(self.slots, self._let_go)

    def _let_go(self) -> None:
        if self.is_up:
            self.is_up = False
            self.child.leave()

    @property
    def is_there(self) -> bool:
        """Whether it counts among those that are wanted."""
        return not (self.is_lost or self.is_leaving or self.is_spare)

    @property
    def items(self) -> int:
        """Requests it was given so far."""
        return sum(slot.items for slot in self.slots)

    def describe(self) -> dict[str, int | bool | str]:
        """As people and pages see it."""
        return {
            "worker": self.child.number,
            "pid": self.child.process.pid,
            "slots": len(self.slots),
            "is_up": self.is_up,
            "role": self.role.value,
            "is_understudy": self.role is Role.UNDERSTUDY,
            "generation": self.generation.number,
            "is_leaving": self.is_leaving,
            "requests": self.items,
        }


class Recycling(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on one worker, which is replaced by a fresh one when it passes them; None is no limit."""

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


def cpu_s_of(pid: int) -> float:
    """Seconds of processor time that a process has taken; 0 if it is gone."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(rest[11]) + int(rest[12])) / _TICKS
    except (OSError, IndexError):
        return 0.0
