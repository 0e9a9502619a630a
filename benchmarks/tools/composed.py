"""A stack in containers: the compose.yaml that `timebound pack` wrote, run by podman-compose in its own network."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import uvloop

from benchmarks.tools.engine import Engine
from benchmarks.tools.load import HOST
from benchmarks.tools.namespaces import Namespace
from benchmarks.tools.processes import StartError
from timebound.lab.load.client import Address, fetch

PORT = 8000
_PATIENCE_S = 60.0
_ASK_S = 2.0
_MORE = """\
# What the benchmark adds: every key that is computed is written down, and nothing learned before helps.
services:
  app:
    environment: { BENCH_SEEN: /seen, TIMEBOUND_PROFILES: none, TIMEBOUND_STORE_LEASE: "2" }
    volumes: ["./seen:/seen"]
"""


class Composed:
    """nginx, two servers and Redis from the pack in `folder`, for the length of a `with` block."""

    port = PORT
    front_is_reloaded = False

    def __init__(self, engine: Engine, folder: Path, image: str) -> None:
        self._engine = engine
        self._folder = folder
        self._network = Namespace("ship")
        self._settings = ["env", f"IMAGE={image}", f"PORT={PORT}"]
        self._replicas = 2
        self.seen = folder / "seen"
        self.first_answer_s = 0.0

    def __enter__(self) -> Self:
        self.seen.mkdir()
        self.seen.chmod(0o777)  # the servers are nobody
        (self._folder / "more.yaml").write_text(_MORE)
        self._network.__enter__()
        began = time.monotonic()
        try:
            self._compose("up", "-d", "--no-build", "--scale", f"app={self._replicas}")
            self.wait_until_whole()
        except BaseException:
            self.__exit__()
            raise
        self.first_answer_s = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        for words in ("pod rm -f -a -t 0", "rm -f -a -t 0", "network prune -f", "volume prune -f"):
            command = self._network.inside("podman", *words.split())
            with suppress(OSError):
                subprocess.run(command, env=self._engine.env, capture_output=True, check=False)
        self._network.__exit__()

    @contextmanager
    def reach(self) -> Iterator[None]:
        """Clients are in the network of the machine that the containers see."""
        with self._network.entered():
            yield

    def wait_until_whole(self) -> None:
        """Return when every server is ready and nginx knows; those that have ended are started again."""
        end = time.monotonic() + _PATIENCE_S
        for name, _ in self._servers(is_running=False):
            self._podman("start", name)
        while not self._is_whole():
            if time.monotonic() > end:
                raise StartError(f"the containers were not ready within {_PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def kill_one(self) -> None:
        """The last server, without a word."""
        self._podman("kill", "-s", "KILL", self._last())

    def stop_one(self) -> None:
        """The last server finishes what it has and leaves."""
        self._podman("stop", self._last())

    def restart_all(self) -> None:
        """All servers leave at once, and come back with new addresses."""
        names = [name for name, _ in self._servers()]
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self._podman("restart", name), names))

    def grow(self) -> None:
        """One server more."""
        self._replicas += 1
        self._compose("up", "-d", "--no-build", "--scale", f"app={self._replicas}")

    def shrink(self) -> None:
        """One server fewer: stopped by hand, as docker compose does it; podman-compose leaves it running."""
        self._replicas -= 1
        name = self._last()
        self._podman("stop", name)
        self._podman("rm", name)

    # ------------------------------------------------------------------ podman

    def _compose(self, *words: str) -> None:
        files = ["-f", str(self._folder / "compose.yaml"), "-f", str(self._folder / "more.yaml")]
        command = [*self._settings, sys.executable, "-m", "podman_compose", *files, *words]
        self._engine.run(*command, inside=self._network.inside())

    def _podman(self, *words: str) -> str:
        return self._engine.run("podman", *words, inside=self._network.inside())

    def _servers(self, *, is_running: bool = True) -> list[tuple[str, str]]:
        """Names and addresses of the servers' containers, by name."""
        listed = self._podman("ps", "-a", "--filter", "label=com.docker.compose.service=app", "--format", "{{.Names}}")
        found: list[tuple[str, str]] = []
        for name in sorted(listed.split()):
            known: Any = json.loads(self._podman("inspect", name))[0]
            address = next(iter(known["NetworkSettings"]["Networks"].values()))["IPAddress"]
            if known["State"]["Running"] is is_running:
                found.append((name, address))
        return found

    def _last(self) -> str:
        return self._servers()[-1][0]

    def _is_whole(self) -> bool:
        servers = self._servers()
        with self.reach():
            # Twice for each server: nginx may still leave one alone for a second that failed twice.
            asked = [*(address for _, address in servers), *[HOST] * 2 * len(servers)]
            return len(servers) == self._replicas and all(map(self._is_ready, asked))

    def _is_ready(self, address: str) -> bool:
        request = f"GET /readyz HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        try:
            return uvloop.run(fetch(Address(address, PORT, address, address), request, _ASK_S)).status == 200
        except (OSError, TimeoutError):
            return False
