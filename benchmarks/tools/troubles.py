"""The troubles of the chaos suite: what is done to a server while it works."""

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.tools.ledger import Ledger, leave_early
from benchmarks.tools.load import HOST, local_address
from benchmarks.tools.services import Redis
from timebound.clock import MonotonicClock
from timebound.lab.load.client import fetch

ADMIN_PATIENCE_S = 60.0


class Troubles:
    """Each method is one fault; it returns when the fault is over, the server's recovery may take longer."""

    def __init__(self, port: int, app: Path, redis: Redis | None, seed: int) -> None:
        self._port = port
        self._app = app
        self._redis = redis
        self._random = random.Random(seed)
        self.releases = 1
        self.reloads_refused = 0
        self.taken: list[tuple[float, int]] = []
        """When a reload was over, and which release is served from then on."""

    def all(self, ledger: Ledger) -> dict[str, Callable[[], Awaitable[None]]]:
        """The faults by name."""
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill_worker": lambda: self.signal_worker(signal.SIGKILL),
            "stop_worker": lambda: self.signal_worker(signal.SIGSTOP),
            "stop_understudy": lambda: self.signal_worker(signal.SIGSTOP, is_understudy=True),
            "kill_understudy": lambda: self.signal_worker(signal.SIGKILL, is_understudy=True),
            "memory_hog": lambda: self.harm(ledger, "hog"),
            "poison_crash": lambda: self.harm(ledger, "crash"),
            "poison_hang": lambda: self.harm(ledger, "hang"),
            "reload": self.reload,
            "disconnects": lambda: leave_early(20, ledger),
        }
        if self._redis is not None:
            faults |= {"redis_kill": self.kill_redis, "redis_pause": self.pause_redis}
        return faults

    async def workers(self) -> list[dict[str, Any]]:
        """The server's processes, as it tells."""
        reply = await fetch(local_address(self._port), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", ADMIN_PATIENCE_S)
        workers: list[dict[str, Any]] = json.loads(reply.body)["workers"]
        return workers

    async def signal_worker(self, number: signal.Signals, *, is_understudy: bool = False) -> None:
        """To one that is up."""
        workers = [w for w in await self.workers() if w["is_up"] and w["is_understudy"] == is_understudy]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers)["pid"], number)

    async def harm(self, ledger: Ledger, harm: str) -> None:
        """An item that does harm, among the others; sent again by an impatient client."""
        n = self._random.randrange(10**6)
        for _ in range(2 if harm != "hog" else 1):
            ledger.send(n, harm, f"poison_{harm}" if harm != "hog" else "memory_hog")
            await asyncio.sleep(0.3)

    async def reload(self) -> None:
        """New code, and the word to take it."""
        self.releases += 1
        text = re.sub(r"^RELEASE = \d+", f"RELEASE = {self.releases}", self._app.read_text(), flags=re.MULTILINE)
        self._app.write_text(text)
        request = f"POST /v1/reload HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n".encode()
        reply = await fetch(local_address(self._port), request, ADMIN_PATIENCE_S)
        if reply.status == 200:
            self.taken.append((MonotonicClock().now(), self.releases))
        else:
            self.reloads_refused += 1

    async def kill_redis(self) -> None:
        """And start it again, empty."""
        assert self._redis is not None
        await asyncio.to_thread(self._redis.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(self._redis.start)

    async def pause_redis(self) -> None:
        """It keeps its connections and says nothing for a while."""
        assert self._redis is not None
        self._redis.pause()
        await asyncio.sleep(0.7)
        self._redis.resume()
