"""The contest on a stack that somebody else put up: an overload, and then everything that is done to servers.

Clients leave at the deadline and send again with the same key, twice. The stack may be plain processes or containers;
the scenes and what is counted are the same.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.commandline import say
from benchmarks.tools.load import measure
from benchmarks.tools.openloop import MANNERS, Record, drive
from benchmarks.tools.seen import count_seen, repeats
from timebound.lab.load.attempts import Attempt, End, Manners
from timebound.lab.load.schedule import Phase

OVERLOAD = 1.2
# While servers come and go: those that are left can carry it, so that what fails does so because of the going.
FAULT_LOAD = 0.4
UNHURRIED = "Timebound-Timeout-Ms: 30000\r\n"
# Clients that ask in a closed loop to find out what a stack can do.
CROWD = 32
# What runs when a scene ends is finished, and written down.
LAST_WORK_S = 0.5
# A scene whose last half a second has failures has not recovered; a figure beyond every bar for that.
STILL_BAD_S = 0.5
NEVER_S = 1e9


class Stack(Protocol):
    """A front at `port`, two servers behind it that note in `seen` what they compute, and what can be done to them."""

    port: int
    seen: Path
    front_is_reloaded: bool
    """Whether the front closes idle connections when servers come and go: who sends just then has to send again."""

    def reach(self) -> AbstractContextManager[None]:
        """Where clients stand: inside, `port` can be connected to."""

    def wait_until_whole(self) -> None:
        """Return when every server is ready."""

    def kill_one(self) -> None: ...
    def stop_one(self) -> None: ...
    def restart_all(self) -> None: ...
    def grow(self) -> None: ...
    def shrink(self) -> None: ...


@dataclass(frozen=True)
class Lengths:
    """Of the scenes, in seconds."""

    closed_s: float
    overload_s: float
    fault_s: float
    recovery_s: float


@dataclass(frozen=True)
class Clients:
    """How long they wait for an answer, and the limit that they tell the server; None leaves it to the model."""

    manners: Manners = MANNERS
    limit_s: float | None = None

    @property
    def headers(self) -> str:
        """What their requests say of it."""
        return "" if self.limit_s is None else f"Timebound-Timeout-Ms: {self.limit_s * 1e3:.0f}\r\n"


IN_A_HURRY = Clients()


@dataclass(frozen=True)
class Fault:
    """Something that is done to a stack while requests come in: so many seconds after the first."""

    after_s: float
    act: Callable[[], None]


class Rehearsal:
    """Plays the scenes one after another and collects figures, whose names begin with `prefix`."""

    def __init__(
        self, stack: Stack, lengths: Lengths, *, seed: int, prefix: str = "", clients: Clients = IN_A_HURRY
    ) -> None:
        self._stack = stack
        self._clients = clients
        self._lengths = lengths
        self._seed = seed
        self._prefix = prefix
        self._capacity = 0.0
        self.figures: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Every scene."""
        self._find_capacity()
        self._overload()
        before = self._repeated()
        self._kill()
        # What the killed server was computing was lost with it, and had to be computed again.
        again = self._repeated() - before
        self._stop()
        self._restart()
        self._scale()
        self._note("computed_twice", self._repeated() - again)
        self._note("kill_computed_again", again)
        # Of what can have been in work at one of two servers: its share of what comes within a deadline.
        in_flight = FAULT_LOAD * self._capacity * self._clients.manners.timeout_s / 2
        self._note("kill_again_of_flight", again / max(1.0, in_flight))
        return self.figures

    def _repeated(self) -> int:
        time.sleep(LAST_WORK_S)
        return repeats(count_seen(self._stack.seen))

    # ------------------------------------------------------------------ scenes

    def _find_capacity(self) -> None:
        with self._stack.reach():
            self._capacity = capacity(self._stack.port, self._lengths.closed_s)
        self._note("capacity_rps", self._capacity)

    def _overload(self) -> None:
        record = self._play("overload", OVERLOAD, self._lengths.overload_s)
        attempts = attempts_of(record)
        self._note("asked", len(record.questions))
        self._note("unanswered", unanswered(record))
        self._note("late_share", late(attempts) / max(1, len(attempts)))
        self._note("full_share", sum(a.quality == "full" for a in attempts) / max(1, len(attempts)))

    def _kill(self) -> None:
        seconds = self._lengths.fault_s
        record = self._play("one killed", FAULT_LOAD, seconds, Fault(seconds / 3, self._stack.kill_one))
        self._note("kill_unanswered", unanswered(record))
        self._note("kill_late", late(attempts_of(record)))

    def _stop(self) -> None:
        seconds = self._lengths.fault_s
        record = self._play("one stopped", FAULT_LOAD, seconds, Fault(seconds / 3, self._stack.stop_one))
        self._note("stop_late", late(attempts_of(record)))
        self._note("stop_failed", failed(attempts_of(record)))

    def _restart(self) -> None:
        began = self._lengths.fault_s / 3
        seconds = began + self._lengths.recovery_s
        record = self._play("both restarted", FAULT_LOAD, seconds, Fault(began, self._stack.restart_all))
        bad = [attempt.intended for attempt in attempts_of(record) if failed([attempt])]
        bad += [question.last.intended for question in record.questions if question.last.end is not End.ANSWERED]
        last = max(bad, default=began)
        # Who fails up to the end has not recovered.
        self._note("restart_recovered_s", max(0.0, last - began) if last < seconds - STILL_BAD_S else NEVER_S)

    def _scale(self) -> None:
        seconds = 2 * self._lengths.fault_s
        up, down = Fault(seconds / 6, self._stack.grow), Fault(seconds * 2 / 3, self._stack.shrink)
        record = self._play("one more, one fewer", FAULT_LOAD, seconds, up, down)
        cut = sum(attempt.end is End.LOST for attempt in attempts_of(record)) if self._stack.front_is_reloaded else 0
        self._note("scale_failed", failed(attempts_of(record)) - cut + unanswered(record))
        self._note("scale_cut", cut)
        self._note("scale_late", late(attempts_of(record)))

    # ------------------------------------------------------------------ playing

    def _play(self, what: str, load: float, seconds: float, *faults: Fault) -> Record:
        self._stack.wait_until_whole()
        rate = load * self._capacity
        say(f"{self._prefix}{what}: {load}x, {rate:.0f}/s for {seconds:.0f} s")
        doer = _Doer(faults)
        with self._stack.reach():
            doer.start()
            traffic = OnceTraffic(self._stack.port, self._clients.headers)
            record = drive(traffic, [Phase(rate, seconds)], self._seed, self._clients.manners)
        doer.finish()
        wrong = sum(not attempt.is_right for attempt in attempts_of(record))
        self._note("wrong", self.figures.get(f"{self._prefix}wrong", 0) + wrong)
        return record

    def _note(self, name: str, figure: float) -> None:
        self.figures[self._prefix + name] = round(figure, 4)


class _Doer(threading.Thread):
    """Does what is to be done to a stack, each at its time; what goes wrong there is raised by `finish`."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(daemon=True)
        self._faults = faults
        self._error: BaseException | None = None

    def run(self) -> None:
        began = time.monotonic()
        try:
            for fault in self._faults:
                time.sleep(max(0.0, began + fault.after_s - time.monotonic()))
                fault.act()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


def capacity(port: int, seconds: float) -> float:
    """What answers in full at this port a second, without hurry; those who answer there learn what batches cost."""
    traffic = OnceTraffic(port, UNHURRIED)
    measure(traffic, CROWD, 1.0)
    return measure(traffic, CROWD, seconds).rps


def attempts_of(record: Record) -> list[Attempt]:
    """Everything that was sent."""
    return [attempt for question in record.questions for attempt in question.attempts]


def unanswered(record: Record) -> int:
    """Questions whose last attempt had no answer either."""
    return sum(question.last.end is not End.ANSWERED for question in record.questions)


def late(attempts: list[Attempt]) -> int:
    """Attempts that had no answer at the deadline."""
    return sum(attempt.end is End.TIMED_OUT for attempt in attempts)


def failed(attempts: list[Attempt]) -> int:
    """Attempts that were refused, or whose connection was lost."""
    return sum(attempt.end in (End.LOST, End.REFUSED) for attempt in attempts)
