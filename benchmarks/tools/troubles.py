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
from timebound.cli.running import Running
from timebound.clock import MonotonicClock
from timebound.lab.load.client import fetch

ADMIN_PATIENCE_S = 60.0
VARIED, VARIED_EVERY_S = 4, 0.4
SLOW_LIMIT_S = 6.0
LEAVING = "Idempotency-Key: leaving-NUMBER\r\nTimebound-Timeout-Ms: 60000\r\n"


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
            "poison_varied": lambda: self.vary(ledger),
            **self.honest(ledger),
        }
        if self._redis is not None:
            faults |= {"redis_kill": self.kill_redis, "redis_pause": self.pause_redis}
        return faults

    def honest(self, ledger: Ledger) -> dict[str, Callable[[], Awaitable[None]]]:
        """Those at which no worker may be lost: nobody does harm."""
        return {
            "reload": self.reload,
            "racing_reloads": self.race,
            "disconnects": lambda: leave_early(20, ledger),
            "leaving_keys": lambda: leave_early(100, ledger, extra=LEAVING),
            "slow_request": lambda: self.be_slow(ledger),
            "hedges": lambda: self.hedge(ledger),
        }

    async def vary(self, ledger: Ledger, times: int = VARIED, every_s: float = VARIED_EVERY_S) -> None:
        """One deadly item after the other, each with another field."""
        for _ in range(times):
            n, salt = self._random.randrange(10**6), self._random.randrange(1, 10**6)
            ledger.send(n, "crash", "poison_varied", salt=salt)
            await asyncio.sleep(every_s)

    async def be_slow(self, ledger: Ledger) -> None:
        """A request that takes long among quick ones, and has asked for the time."""
        ledger.send(self._random.randrange(10**6), "slow", "slow_request", limit_s=SLOW_LIMIT_S)
        await asyncio.sleep(0.5)

    async def hedge(self, ledger: Ledger) -> None:
        """Requests that are sent a second time, written differently, before the first is answered."""
        for _ in range(20):
            first = ledger.send(self._random.randrange(10**6), "", "hedges")
            ledger.send(first.n, "", "hedges", hedges=first)
            await asyncio.sleep(0.02)

    async def race(self) -> None:
        """Several reloads at once, each of newer code."""
        await asyncio.gather(*(self.reload() for _ in range(3)))

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
        release = self.releases
        text = re.sub(r"^RELEASE = \d+", f"RELEASE = {release}", self._app.read_text(), flags=re.MULTILINE)
        scratch = self._app.with_suffix(".new")
        scratch.write_text(text)
        scratch.replace(self._app)  # whole or not at all: somebody may be reading it
        server = Running(f"http://{HOST}:{self._port}", {}, ADMIN_PATIENCE_S)
        answer = await asyncio.to_thread(server.ask, "POST", "/v1/reload")
        if answer.status == 200:
            self.taken.append((MonotonicClock().now(), release))
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
