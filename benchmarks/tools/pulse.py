"""A gateway that notes how long each stretch of its event loop's work is; and what it held of memory meanwhile.

`python benchmarks/tools/pulse.py FILE serve ...` is `timebound serve ...` with a beat in its event loop, a thousand
times a second. Between two beats there is at most a millisecond's waiting and one turn of the loop. Noted is the
processor time of the loop's thread, and the time by the clock without what that thread, by the kernel's account, was
ready to run and had no core: a gateway that waits for a core on a busy machine is not stalled by its clients. The
second is more where the loop waits for a lock, a page or a disk; and where the machine itself is stopped by its host.
"""

import asyncio
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

BEAT_S = 0.001
NOTED_S = 0.002
LOOK_S = 0.05
MANY = 100
"""Connections, from which on it is told what each of them costs."""
CONNECTION_BYTES = 300_000
"""What docs/security.md says that a connection may take for itself."""
ANY_TRAFFIC_BYTES = 16_000_000
"""What a gateway grows by from its start under any traffic: code that is first used, caches, room between objects."""


async def _beat(file: Path) -> None:
    account = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    with file.open("a", buffering=1) as notes:
        used, began, waited_s = time.thread_time(), time.monotonic(), _waited_s(account)
        while True:
            await asyncio.sleep(BEAT_S)
            used_s, passed_s = time.thread_time() - used, time.monotonic() - began - BEAT_S
            held_s = passed_s - (_waited_s(account) - waited_s) if passed_s > NOTED_S else passed_s
            if used_s > NOTED_S or held_s > NOTED_S:
                notes.write(f"{time.monotonic():.4f} {used_s:.5f} {held_s:.5f}\n")
            used, began, waited_s = time.thread_time(), time.monotonic(), _waited_s(account)


def _waited_s(account: int) -> float:
    """How long the thread was ready to run and did not, so far."""
    return int(os.pread(account, 100, 0).split()[1]) * 1e-9


def _serve_with_a_beat(file: Path, arguments: list[str]) -> int:
    from timebound import server
    from timebound.cli import main

    serve: Callable[..., Coroutine[Any, Any, int]] = server.serve

    async def beating(*arguments: Any) -> int:
        beat = asyncio.create_task(_beat(file))
        try:
            return await serve(*arguments)
        finally:
            beat.cancel()

    server.serve = beating  # type: ignore[assignment]
    return main(arguments)


def longest_stall_s(file: Path, since: float, until: float) -> tuple[float, float]:
    """The longest turn of the loop that ended between these moments of the monotonic clock.

    In processor time, and by the clock without what it waited for a core.
    """
    notes = [[float(word) for word in line.split()] for line in file.read_text().splitlines()] if file.exists() else []
    turns = [(used_s, held_s) for at, used_s, held_s in notes if since <= at <= until]
    return max((used_s for used_s, _ in turns), default=0.0), max((held_s for _, held_s in turns), default=0.0)


def metrics(port: int) -> dict[str, float]:
    """The server's own numbers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def resident_bytes(pid: int) -> int:
    """Memory of one process: here the gateway, which is what clients could fill."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


class Weight:
    """Looks at a gateway's memory, and at what it counts of it, again and again for the length of a `with` block."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before = resident_bytes(pid)
        self.growth = 0
        """Bytes that it had more at most than when this was made."""
        self.counted = 0.0
        """Bytes that its limits counted at most: bodies, unread answers, and what a connection may take."""
        self.connection_bytes = 0.0
        """What each of many connections took of memory that is counted nowhere else, when most were open."""
        self._most_open = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        looks = 0
        while not self._is_over.wait(LOOK_S):
            self.growth = max(self.growth, resident_bytes(self._pid) - self._before)
            looks += 1
            if looks % 5 == 0:  # asking costs the gateway something
                self._compare(metrics(self._port))

    def _compare(self, seen: Mapping[str, float]) -> None:
        held, count = seen["timebound_held_bytes"], seen["timebound_connections_open"]
        self.counted = max(self.counted, held + count * CONNECTION_BYTES)
        if count >= MANY and count >= self._most_open:
            self._most_open = count
            grown = resident_bytes(self._pid) - self._before
            self.connection_bytes = max(self.connection_bytes, (grown - held) / count)

    @property
    def over_counted(self) -> float:
        """What it grew by over what was counted."""
        return self.growth / (self.counted + ANY_TRAFFIC_BYTES)


if __name__ == "__main__":
    sys.exit(_serve_with_a_beat(Path(sys.argv[1]), sys.argv[2:]))
