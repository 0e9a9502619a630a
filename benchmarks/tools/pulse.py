"""A gateway that notes how long each stretch of its event loop's work is; and what it held of memory meanwhile.

`python benchmarks/tools/pulse.py FILE serve ...` is `timebound serve ...` with a beat in its event loop, a thousand
times a second. Between two beats there is at most a millisecond's waiting and one turn of the loop. What counts is the
processor time of the loop's thread: a gateway that waits for a core on a busy machine is not stalled by its clients.
"""

import asyncio
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

BEAT_S = 0.001
NOTED_S = 0.002
LOOK_S = 0.05
CONNECTION_BYTES = 300_000
"""What docs/security.md says that a connection may take for itself."""
ANY_TRAFFIC_BYTES = 16_000_000
"""What a gateway grows by from its start under any traffic: code that is first used, caches, room between objects."""


async def _beat(file: Path) -> None:
    with file.open("a", buffering=1) as notes:
        used = time.thread_time()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.thread_time()
            if now - used > NOTED_S:
                notes.write(f"{time.monotonic():.4f} {now - used:.5f}\n")
            used = time.thread_time()


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


def longest_stall_s(file: Path, since: float, until: float) -> float:
    """The longest turn of the loop that ended between these moments of the monotonic clock."""
    notes = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return max((float(length) for at, length in notes if since <= float(at) <= until), default=0.0)


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
                seen = metrics(self._port)
                own = seen["timebound_connections_open"] * CONNECTION_BYTES
                self.counted = max(self.counted, seen["timebound_held_bytes"] + own)

    @property
    def over_counted(self) -> float:
        """What it grew by over what was counted."""
        return self.growth / (self.counted + ANY_TRAFFIC_BYTES)


if __name__ == "__main__":
    sys.exit(_serve_with_a_beat(Path(sys.argv[1]), sys.argv[2:]))
