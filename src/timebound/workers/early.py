"""A worker's process that is started before its gateway is there: both import what they need side by side.

It gets its sockets, and the files it prints to, once the gateway has them. If none comes it leaves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from timebound.machine.gpus import VARIABLE, gpus, visible
from timebound.workers import messages
from timebound.workers.launch import spawn

# Math libraries start a thread per core each, in every worker, unless told not to.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_WORD = "early"
"""Instead of the number of a slot's socket."""
_OUTPUTS = (1, 2)
_MOST_FILES = 250
"""Linux hands over 253 at once."""


def command(control: int, *slots: int | str) -> list[str]:
    """What runs a worker whose ends of these sockets are open under these numbers."""
    return [sys.executable, "-m", "timebound.workers.process", str(control), *map(str, slots)]


def environment_of(plan: messages.WorkerPlan, threads: int, gpu: int | None = None) -> dict[str, str]:
    """The variables that a worker has; `gpu` is the place of its own among the plan's."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for variable in THREAD_VARIABLES:
        found.setdefault(variable, str(threads))
    if gpu is not None:
        found[VARIABLE] = visible(plan.gpus, gpu)
    elif plan.device == "cpu":
        found[VARIABLE] = ""
    return found


class Early:
    """Such a process, until the gateway takes it over, or `end`."""

    def __init__(self, plan: messages.WorkerPlan) -> None:
        """The first worker of this plan, but for what it will load; raises `OSError` if it cannot be started."""
        self.environment = environment_of(plan, plan.slot_threads)
        self.control, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self.pid = spawn(command(number, _WORD), self.environment, {number: number})
        self._is_ours = True
        with suppress(OSError):  # it has ended already, or may not be lowered
            base = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self.pid, min(19, base + messages.NICENESS))

    def claim(self, environment: Mapping[str, str], slots: int) -> bool:
        """Whether it is what would be started now; if so it is the caller's from here on."""
        fits = self._is_ours and self.environment == environment and slots + len(_OUTPUTS) <= _MOST_FILES
        self._is_ours = self._is_ours and not fits
        return fits

    def hand_over(self, outputs: Mapping[int, int], slots: Sequence[int]) -> None:
        """Give it the files that a new process would have been started with."""
        given = [outputs[number] for number in _OUTPUTS if number in outputs]
        with suppress(OSError):  # it has ended: who hears its control channel is told so
            word = bytes(number in outputs for number in _OUTPUTS)
            socket.send_fds(self.control, [word], [*given, *slots])

    def end(self) -> None:
        """End it, unless it has been taken over."""
        if self._is_ours:
            self._is_ours = False
            self.control.close()
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def start_early(workers: int | None, slots: int | None, threads: int | None, device: str, cores: int) -> Early | None:
    """Start one for a server with these options; None where it would not be known yet what it is to be, or cannot be.

    Which GPU is a worker's own is found out later, and it must not import anything before it sees that one alone.
    """
    device = "" if device == "auto" else device.partition(":")[0]
    if device not in ("", "cpu") or gpus(os.environ):
        return None
    plan = messages.WorkerPlan(target="", cores=cores, workers=workers, slots=slots, threads=threads, device=device)
    try:
        return Early(plan)
    except OSError:  # as when there may be no more processes: the gateway will try again, and say so
        return None


def sockets(arguments: Sequence[str]) -> list[socket.socket]:
    """In the worker: its control channel, and its slots' sockets when it has them; of these none if nobody needs it."""
    control = socket.socket(fileno=int(arguments[0]))
    if list(arguments[1:]) != [_WORD]:
        return [control, *(socket.socket(fileno=int(number)) for number in arguments[1:])]
    word, files, _, _ = socket.recv_fds(control, len(_OUTPUTS), _MOST_FILES)
    for number, is_given in zip(_OUTPUTS, word, strict=False):
        if is_given:
            file = files.pop(0)
            os.dup2(file, number)
            os.close(file)
    return [control, *(socket.socket(fileno=number) for number in files)]
