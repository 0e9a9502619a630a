"""Finds out what stood still while a server was measured: the machine, the gateway, a worker or one of its hands.

`python benchmarks/tools/pauses.py FOLDER serve ...` is `timebound serve ...` with a beat in its event loop, and
`python benchmarks/tools/pauses.py FOLDER` a bare clock for each core, with nothing else to do. A worker or a hand has a
beat in a thread of its own if its app calls `watch`. Each notes in a file of its own how late its beat was. With
PAUSES_STACKS=1 also what its threads did meanwhile where it was a tenth of a second late: faulthandler finds that out
without the interpreter, and may crash the process by that.
"""

import asyncio
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

BEAT_S = 0.02
NOTED_S = 0.02
LONG_S = 0.1
"""A beat so late has its stacks noted."""
STACKS = os.environ.get("PAUSES_STACKS") == "1"
STATE_S = 0.1
OVERDUE_S = 0.15
"""A batch that takes so much longer than predicted has the stacks of its worker noted."""
_MOST_STACKS = 20


class Notes:
    """What one process notes of itself: lines of JSON, with times of the monotonic clock."""

    def __init__(self, folder: Path, who: str) -> None:
        self._file = (folder / f"{who}-{os.getpid()}.jsonl").open("a", buffering=1)
        self.trace = (folder / f"{who}-{os.getpid()}.txt").open("w+b", buffering=0)
        self._read = self._stacks = 0
        self._collecting = 0.0
        gc.callbacks.append(self._collected)

    def put(self, what: str, seconds: float = 0.0, **more: Any) -> None:
        """Something that ends now took so long."""
        self._file.write(json.dumps({"at": time.monotonic(), "what": what, "s": round(seconds, 4), **more}) + "\n")

    def arm(self) -> None:
        """Have the stacks noted unless this is called again in time."""
        if STACKS and self._stacks < _MOST_STACKS:
            faulthandler.dump_traceback_later(BEAT_S + LONG_S, file=self.trace)

    def late(self, since: "Account") -> None:
        """A beat came; it was due a beat after this account was made."""
        late_s = time.monotonic() - since.at - BEAT_S
        if late_s > NOTED_S:
            self.put("beat", late_s, **since.told())
        size = os.fstat(self.trace.fileno()).st_size
        if size > self._read:
            stack = os.pread(self.trace.fileno(), size - self._read, self._read).decode(errors="replace")
            self._read, self._stacks = size, self._stacks + 1
            self.put("stack", stack=stack)

    def _collected(self, phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.monotonic()
        elif (seconds := time.monotonic() - self._collecting) > 0.005:
            self.put(f"garbage of generation {told['generation']}", seconds)


class Account:
    """What a thread had used when this was made."""

    def __init__(self) -> None:
        self.at, self._cpu_s, self._waited_s = time.monotonic(), time.thread_time(), _waited_s()
        self._used = resource.getrusage(resource.RUSAGE_THREAD)

    def told(self) -> dict[str, float]:
        """What it has used since."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return {
            "cpu_s": round(time.thread_time() - self._cpu_s, 4),
            "waited_for_a_core_s": round(_waited_s() - self._waited_s, 4),
            "faults": used.ru_minflt - self._used.ru_minflt,
            "disk_faults": used.ru_majflt - self._used.ru_majflt,
            "gave_up_core": used.ru_nvcsw - self._used.ru_nvcsw,
            "lost_core": used.ru_nivcsw - self._used.ru_nivcsw,
        }


def _waited_s() -> float:
    """How long this thread was ready to run and did not; 0 where the kernel keeps no account of that."""
    with suppress(OSError, ValueError, IndexError):
        account = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
        return int(account.split()[1]) * 1e-9
    return 0.0


# ---------------------------------------------------------------------- workers and hands


def watch(folder: Path) -> None:
    """In the process of a worker or a hand: from now on its threads have a beat."""
    is_hand = "timebound.workers.hand" in sys.orig_argv
    notes = Notes(folder, "hand" if is_hand else "worker")
    if STACKS and not is_hand:
        faulthandler.register(signal.SIGUSR2, file=notes.trace, all_threads=True)
    threading.Thread(target=_beat_in_a_thread, args=(notes, not is_hand), daemon=True, name="beat").start()


def _beat_in_a_thread(notes: Notes, has_stacks: bool) -> None:
    notes.put("begins")
    while True:
        if has_stacks:
            notes.arm()
        account = Account()
        time.sleep(BEAT_S)
        notes.late(account)


# ---------------------------------------------------------------------- the gateway


class Watcher:
    """Beats in a gateway's event loop, and notes ten times a second what waits and what runs."""

    def __init__(self, server: Any, folder: Path) -> None:
        from timebound.events import Refused, TurnedAway

        self._server, self._folder, self._notes = server, folder, Notes(folder, "gateway")
        self._refused: Counter[str] = Counter()
        self._overdue: set[int] = set()
        for kind in (Refused, TurnedAway):
            server.gateway.events.on(kind, lambda event: self._refused.update((event.code,)))

    async def beat(self) -> None:
        """Until it is cancelled."""
        noted, account = 0.0, Account()
        while True:
            self._notes.arm()
            beat = Account()
            await asyncio.sleep(BEAT_S)
            self._notes.late(beat)
            self._look_for_overdue()
            if beat.at - noted > STATE_S:
                self._notes.put("state", time.monotonic() - account.at, **self._state(), **account.told())
                noted, account = beat.at, Account()

    def _batches(self) -> list[Any]:
        return [sent.batch for sent in self._server.gateway.requests._floor.running.values()]

    def _look_for_overdue(self) -> None:
        now = self._server.gateway.clock.now()
        for batch in self._batches():
            if now - batch.started < batch.predicted_s + OVERDUE_S or batch.id in self._overdue:
                continue
            self._overdue.add(batch.id)
            age_s = now - batch.started
            self._notes.put("batch", age_s, size=len(batch.tickets), predicted_s=round(batch.predicted_s, 4))
            for worker in self._server.gateway.supervisor._workers.values():
                pid = worker.child.process.pid
                if STACKS and (self._folder / f"worker-{pid}.jsonl").exists() and len(self._overdue) < _MOST_STACKS:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGUSR2)

    def _state(self) -> dict[str, Any]:
        gateway, gauges = self._server.gateway, self._server.metrics.gauges
        now, refused = gateway.clock.now(), dict(self._refused)
        self._refused.clear()
        running = [
            [len(each.tickets), round((now - each.started) * 1e3), round(each.predicted_s * 1e3), each.members_done]
            for each in self._batches()
        ]
        connections = gauges["connections_open"][1]() if "connections_open" in gauges else -1
        return {
            "waiting": gateway.requests.waiting,
            "queued": gateway.requests.queued(),
            "connections": connections,
            "running": running,
            "margin_ms": round(gateway.requests.margin_s * 1e3, 1),
            "refused": refused,
        }


def _serve(folder: Path, arguments: list[str]) -> int:
    from timebound import server
    from timebound.cli import main

    class Watched(server.Server):
        async def start(self) -> None:
            self._beat = asyncio.create_task(Watcher(self, folder).beat())
            await super().start()

    server.Server = Watched  # type: ignore[misc]
    return main(arguments)


# ---------------------------------------------------------------------- bare clocks


def clocks(folder: Path) -> None:
    """A process for each core that only asks what time it is, and one that reads the system's own counters."""
    for core in sorted(os.sched_getaffinity(0)):
        if not os.fork():
            _clock(folder, core)
    notes, before = Notes(folder, "machine"), _counters()
    notes.put("begins")
    while True:
        time.sleep(STATE_S)
        now = _counters()
        more = {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)}
        if more:
            notes.put("counters", **more)
        before = now


def _clock(folder: Path, core: int) -> None:
    with suppress(OSError):
        os.sched_setaffinity(0, {core})
    notes, parent = Notes(folder, f"clock{core}"), os.getppid()
    notes.put("begins")
    while os.getppid() == parent:
        account = Account()
        time.sleep(BEAT_S)
        notes.late(account)
    os._exit(0)


def _counters() -> dict[str, int]:
    """Of the whole machine: time that its host took (in ticks), and what went wrong with connections."""
    told: dict[str, int] = {}
    with suppress(OSError, IndexError, ValueError):
        told["host_took"] = int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    for file in ("/proc/net/netstat", "/proc/net/snmp"):
        with suppress(OSError, ValueError):
            lines = Path(file).read_text().splitlines()
            for names, values in zip(lines[::2], lines[1::2], strict=False):
                told |= {
                    name: int(value) for name, value in zip(names.split(), values.split(), strict=True) if name in _TOLD
                }
    return told


_TOLD = {
    "ListenOverflows",
    "ListenDrops",
    "TCPTimeouts",
    "RetransSegs",
    "TCPAbortOnData",
    "TCPRcvQDrop",
    "AttemptFails",
}


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(_serve(Path(sys.argv[1]), sys.argv[2:]))
    clocks(Path(sys.argv[1]))
