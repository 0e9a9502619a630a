"""The understudy's main: runs `fallback`, `size` and `redact` of the user's classes, without weights.

The first two must answer within milliseconds, also while every worker is busy or dead. So they run in a process of
their own that imports the classes and loads nothing. Each call has a thread to itself; one that takes too long is
left behind and replaced, so it delays nobody else.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue

from timebound.clock import Clock, MonotonicClock
from timebound.errors import RequestError, SetupError
from timebound.importer import describe
from timebound.model import example_body
from timebound.target import sentence, understudies
from timebound.types import Outcome
from timebound.workers import messages, wire
from timebound.workers.at_work import PLACES, Note
from timebound.workers.failures import failure
from timebound.workers.messages import FALLBACK, REDACT, SIZE
from timebound.workers.runner import Runner

log = logging.getLogger("timebound.understudy")

LIMIT_S = 0.05
"""A call that takes longer counts as stuck."""
_THREADS = 4
_MOST_THREADS = 64


def serve_errands(control: socket.socket, errands: socket.socket, load: messages.Load) -> int:
    """Serve until the gateway closes its end or says stop."""
    try:
        clock = MonotonicClock()
        runners = {
            r.name: r
            for r in (
                Runner(model, clock)
                for model in understudies(Path(load.plan.target), load.plan.versions, load.plan.app)
            )
        }
        for runner in runners.values():
            _rehearse(runner)
    except Exception as error:
        wire.write_frame(control, messages.Failed(sentence(error), traceback.format_exc()))
        return 2
    sys.setswitchinterval(0.001)  # a call that computes must not hold up the others for long
    threading.Thread(target=_leave_with, args=(control,), name="control", daemon=True).start()
    note = Note()
    wire.write_frame(control, messages.Ready([], 1, at_work=note.file))
    desk = Desk(Errands(errands, runners, note).run, clock)
    while (frame := wire.read_frame(errands)) is not None:
        assert isinstance(frame[0], messages.Errand)
        for call in frame[0].calls:
            desk.put(call)
    return 0


class Errands:
    """Runs one call and sends what came of it; safe to use from several threads."""

    def __init__(self, sock: socket.socket, runners: Mapping[str, Runner], note: Note) -> None:
        self._sock = sock
        self._runners = runners
        self._note = note
        self._places = list(range(PLACES))  # to note calls at
        self._sending = threading.Lock()

    def run(self, call: messages.Call) -> None:
        """Never raises for what the user's code did."""
        place = self._places.pop()
        self._note.put(place, call.number)
        try:
            outcome, size = _run(self._runners[call.model], call.duty, call.body)
        except BaseException as error:
            # A client's mistake is told to the client, by the worker, and is none of the operator's.
            level = logging.DEBUG if isinstance(error, RequestError) else logging.ERROR
            log.log(level, "%s.%s failed: %s", call.model, call.duty, describe(error))
            outcome, size = failure("model_failed", f"{call.duty} failed"), 1.0
        finally:
            self._note.put(place, 0)
            self._places.append(place)
        with self._sending:
            wire.write_frame(self._sock, messages.ErrandDone(call.number, outcome, size))


class Desk:
    """Threads that take calls in order; for each that is stuck another one is started."""

    def __init__(self, run: Callable[[messages.Call], None], clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._calls: SimpleQueue[messages.Call] = SimpleQueue()
        self._clerks = [_Clerk(self._calls, run, clock) for _ in range(_THREADS)]
        self._has_work = threading.Event()
        threading.Thread(target=self._watch, name="desk", daemon=True).start()

    def put(self, call: messages.Call) -> None:
        """Have a call run soon."""
        self._calls.put(call)
        self._has_work.set()

    def _watch(self) -> None:
        """While there is work, see to it that enough clerks are able to do it."""
        pause = threading.Event()
        while True:
            self._has_work.wait()
            self._has_work.clear()  # before it looks: what comes after that is looked at next time
            pause.wait(LIMIT_S / 2)
            self._replace_stuck()
            if not self._calls.empty():
                self._has_work.set()

    def _replace_stuck(self) -> None:
        now = self._clock.now()
        self._clerks = [clerk for clerk in self._clerks if clerk.thread.is_alive()]
        able = sum(not clerk.is_stuck(now) for clerk in self._clerks)
        for _ in range(_THREADS - able):
            self._clerks.append(_Clerk(self._calls, self._run, self._clock))
        if len(self._clerks) > _MOST_THREADS:
            log.critical("%d calls are stuck; the understudy starts afresh", _MOST_THREADS)
            os._exit(70)


class _Clerk:
    def __init__(self, calls: SimpleQueue[messages.Call], run: Callable[[messages.Call], None], clock: Clock) -> None:
        self._calls = calls
        self._run = run
        self._clock = clock
        self._since: float | None = None
        self.thread = threading.Thread(target=self._work, name="errands", daemon=True)
        self.thread.start()

    def is_stuck(self, now: float) -> bool:
        since = self._since
        return since is not None and now - since > LIMIT_S

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            self._since = self._clock.now()
            try:
                self._run(call)
            except OSError:
                return  # the gateway closed its end
            if self.is_stuck(self._clock.now()):
                log.error("%s.%s took longer than %g s", call.model, call.duty, LIMIT_S)
                return  # another one has taken its place
            self._since = None


def _run(runner: Runner, duty: str, body: bytes) -> tuple[Outcome, float]:
    request = runner.decode(body)
    if duty == SIZE:
        return Outcome(b""), float(runner.model.size(request))
    if duty == REDACT:
        kept = runner.model.redact(request)
        return Outcome(b"", code="not_kept") if kept is None else runner.encode(kept), 1.0
    return runner.encode(runner.model.fallback(request), body), 1.0


def _rehearse(runner: Runner) -> None:
    """Find out at start what would otherwise fail when it is needed."""
    model = runner.model
    if model.example is None:
        return
    body = example_body(model.example)
    has_redact = model.keep_inputs and callable(model.redact)
    for duty, is_there in ((FALLBACK, callable(model.fallback)), (SIZE, callable(model.size)), (REDACT, has_redact)):
        try:
            if is_there:
                _run(runner, duty, body)
        except Exception as error:
            raise SetupError(
                f"{runner.name}: {duty}() failed on the example: {describe(error)}; "
                "it runs without load(), on the class and the request alone"
            ) from error


def _leave_with(control: socket.socket) -> None:
    """Leave when the gateway is gone; when it says so, after the time that calls may take."""
    if wire.read_frame(control) is not None:
        threading.Event().wait(2 * LIMIT_S)
    os._exit(0)
