"""A hand: a process beside a worker that runs `prepare` and writes what it gives into the worker's memory.

Started by `hands.py` as `python -m timebound.workers.hand SOCKET BOARD NUMBER NICENESS PARENT AREA...`. It imports the
user's classes without loading weights. A body that ends or holds up this process costs that body, and no worker.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from timebound.clock import Clock, MonotonicClock
from timebound.importer import describe
from timebound.log import set_up_logging
from timebound.target import sentence, understudies
from timebound.types import Outcome
from timebound.workers.failures import item_failure
from timebound.workers.members import open_runner
from timebound.workers.messages import WorkerPlan
from timebound.workers.runner import CAUGHT, Runner
from timebound.workers.staging import Form

log = logging.getLogger("timebound.hand")

MESSAGE_BYTES = 1 << 17
"""The longest message; a kernel's usual socket buffer has room for it."""
_LONGEST_REFUSAL = 2000
"""Bytes of what an item is refused with; who says more is heard in the worker."""
_PR_SET_PDEATHSIG = 1


class Equip(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """Worker to hand: import the plan's target."""

    plan: WorkerPlan


class Learn(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Worker to hand: how areas are laid out, and by model the form of its items, its example's body, and its rows."""

    rows_bytes: int
    models: dict[str, tuple[Form, bytes, int]]


class Piece(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Worker to hand: prepare these; each is (offset and length of its body, row) in this slot's area."""

    slot: int
    model: str
    items: list[tuple[int, int, int]]


class Learned(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Hand to worker: it takes pieces from now on, but of those models that it cannot prepare, and why."""

    unable: dict[str, str]


class Done(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Hand to worker: the piece's rows are written, but for these: refused with an outcome, or to be prepared in the
    worker, because they have another form."""

    outcomes: dict[int, Outcome]
    odd: list[int]
    slowest_s: float


Task: TypeAlias = Equip | Learn | Piece
Reply: TypeAlias = Learned | Done

NOBODY = -1.0
"""On the board: it prepares nothing now."""


class Board:
    """What each hand is at, written by itself, so that it is known of one that has died: a row, and since when."""

    def __init__(self, file: int, hands: int) -> None:
        self._cells = np.frombuffer(mmap.mmap(file, hands * 16), np.float64).reshape(hands, 2)

    def set(self, hand: int, row: float, now: float) -> None:
        """This hand begins with a row, or with `NOBODY`."""
        cell = self._cells[hand]
        cell[1], cell[0] = now, row

    def read(self, hand: int) -> tuple[int, float]:
        """Which row it is at, and since when."""
        row, since = self._cells[hand].tolist()
        return int(row), since


def why_unable(runner: Runner, form: Form, example: bytes) -> str:
    """What is wrong with preparing without weights, in this process; empty if nothing is."""
    try:
        item = runner.model.prepare(runner.decode(example))
    except CAUGHT as error:
        return f"prepare() fails without load(): {describe(error)}; set what it needs in equip()"
    return "" if Form.of(item) == form else "prepare() gives something else than after load()"


class Hand:
    """Takes pieces from its worker, one at a time."""

    def __init__(self, sock: socket.socket, board: Board, number: int, areas: list[int], clock: Clock) -> None:
        self._sock = sock
        self._board = board
        self._number = number
        self._files = areas
        self._clock = clock
        self._runners: dict[str, Runner] = {}
        self._failure = ""
        self._learn: Learn | None = None
        self._memory: list[memoryview] = []
        self._rows: dict[tuple[int, str], list[Any]] = {}

    def serve(self) -> None:
        """Until the worker closes its end."""
        tasks = msgspec.msgpack.Decoder(Task)
        replies = msgspec.msgpack.Encoder()
        while data := self._sock.recv(MESSAGE_BYTES):
            task = tasks.decode(data)
            if isinstance(task, Equip):
                self._equip(task)
            else:
                reply = self._prepare(task) if isinstance(task, Piece) else self._rehearse(task)
                self._sock.send(replies.encode(reply))

    def _equip(self, task: Equip) -> None:
        set_up_logging(task.plan.log_level, as_json=task.plan.log_json, colour=task.plan.log_colour)
        try:
            models = understudies(Path(task.plan.target), task.plan.versions, task.plan.app)
            self._runners = {runner.name: runner for runner in (open_runner(model, self._clock) for model in models)}
        except CAUGHT as error:
            self._failure = sentence(error)

    def _rehearse(self, task: Learn) -> Learned:
        self._learn = task
        self._memory = [memoryview(mmap.mmap(file, os.fstat(file).st_size)) for file in self._files]
        unable = {name: self._why_unable(name, form, body) for name, (form, body, _) in task.models.items()}
        return Learned({name: why for name, why in unable.items() if why})

    def _why_unable(self, name: str, form: Form, example: bytes) -> str:
        """Prepare the example; what is wrong if that cannot be done here as in the worker."""
        runner = self._runners.get(name)
        return why_unable(runner, form, example) if runner is not None else self._failure or "its class is not there"

    def _prepare(self, piece: Piece) -> Done:
        assert self._learn is not None
        runner, memory = self._runners[piece.model], self._memory[piece.slot]
        form, _, room = self._learn.models[piece.model]
        rows = self._rows.get((piece.slot, piece.model))
        if rows is None:
            rows = self._rows[piece.slot, piece.model] = form.rows(memory[: self._learn.rows_bytes], room)
        outcomes: dict[int, Outcome] = {}
        odd, slowest_s, start = [], 0.0, self._clock.now()
        for offset, length, row in piece.items:
            self._board.set(self._number, row, start)
            body = memory[offset : offset + length]
            try:
                fits = form.write(rows, row, runner.model.prepare(runner.decode(body)))
            except CAUGHT as error:
                outcome = item_failure(runner.name, error, "prepare", body)
                outcomes[row] = outcome
                fits = len(outcome.body) <= _LONGEST_REFUSAL
            if not fits:
                outcomes.pop(row, None)
                odd.append(row)
            now = self._clock.now()
            slowest_s, start = max(slowest_s, now - start), now
        self._board.set(self._number, NOBODY, start)
        return Done(outcomes, odd, slowest_s)


def main(arguments: list[str]) -> int:
    """Serve until the worker is gone; then this process is, whatever it is at."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    number, board, own, hands, niceness, parent, *areas = map(int, arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before it could be asked for
        return 1
    os.nice(niceness)
    sock = socket.socket(fileno=number)
    for file in (number, board, *areas):
        os.set_inheritable(file, False)  # what the user's code may start must not keep them open
    Hand(sock, Board(board, hands), own, areas, MonotonicClock()).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
