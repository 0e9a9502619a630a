"""A stack of plain processes, put up by `timebound up`: nginx, two servers, Redis."""

import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import uvloop

from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.load import HOST, answers_right, local_address
from benchmarks.tools.processes import Server, StartError
from benchmarks.tools.seen import SEEN_ENV
from timebound.lab.load.client import fetch

APP = Path(__file__).resolve().parents[1] / "serving/apps/shipped"
PATIENCE_S = 30.0
ROOM = 3
"""Servers at most: two, and one more when it grows."""


class UpStack:
    """`timebound up` with two servers of one worker each, for the length of a `with` block."""

    front_is_reloaded = True

    def __init__(self, serve_args: Sequence[str] = (), *, replicas: int = 2) -> None:
        self.port = free_row(1 + ROOM)
        self.replicas = replicas
        self._folder = tempfile.TemporaryDirectory(prefix="ship-")
        self.seen = Path(self._folder.name)
        options = ["--workers", "1", "--profiles", "none", "--store-lease", "2", *serve_args]
        where = ["--port", str(self.port), "--replicas", str(replicas)]
        command = [sys.executable, "-m", "timebound", "up", str(APP), *where, *options]
        traffic = OnceTraffic(self.port)
        self._up = Server("timebound up", command, {SEEN_ENV: self._folder.name}, lambda: answers_right(traffic))

    def __enter__(self) -> Self:
        self._up.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._up.stop()
        self._folder.cleanup()

    @contextmanager
    def reach(self) -> Iterator[None]:
        """Anywhere on this machine."""
        yield

    def wait_until_whole(self) -> None:
        """Return when every server is ready, none is there that should not be, and nginx knows."""
        end = time.monotonic() + PATIENCE_S
        # Twice for each server: nginx may still leave one alone for a second that failed twice.
        while len(self.servers()) != self.replicas or not all(
            self._is_ready(number) for number in (*range(1, self.replicas + 1), *[0] * 2 * self.replicas)
        ):
            if time.monotonic() > end:
                said = "\n".join(self._up.complaints()[-15:])
                raise StartError(f"timebound up: not {self.replicas} ready servers within {PATIENCE_S:.0f} s\n{said}")
            time.sleep(0.05)

    def kill_one(self) -> None:
        """The last server, without a word."""
        os.kill(self.servers()[-1], signal.SIGKILL)

    def stop_one(self) -> None:
        """It finishes what it has and leaves; another is started in its place."""
        os.kill(self.servers()[-1], signal.SIGTERM)

    def restart_all(self) -> None:
        """All of them leave at once, and others are started in their place."""
        for pid in self.servers():
            os.kill(pid, signal.SIGTERM)

    def grow(self) -> None:
        """One server more."""
        os.kill(self._up.pid, signal.SIGTTIN)
        self.replicas += 1
        self.wait_until_whole()

    def shrink(self) -> None:
        """One server fewer."""
        os.kill(self._up.pid, signal.SIGTTOU)
        self.replicas -= 1
        self.wait_until_whole()

    def signals(self, name: str) -> list[float]:
        """A number from the metrics of each server."""
        return [read_metric(self.port + number, name) for number in range(1, self.replicas + 1)]

    def servers(self) -> list[int]:
        """The processes of the servers, by their port."""
        told = {pid: _words(pid) for pid in _processes() if _parent(pid) == self._up.pid}
        ports = {pid: words[words.index(b"--port") + 1] for pid, words in told.items() if b"serve" in words}
        return sorted(ports, key=ports.__getitem__)

    def _is_ready(self, number: int) -> bool:
        return _get(self.port + number, "/readyz")[0] == 200


def read_metric(port: int, name: str) -> float:
    """A number from the metrics of a server on this machine."""
    _, text = _get(port, "/metrics")
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"timebound_{name} "))


def free_row(count: int) -> int:
    """The first of so many ports in a row that nobody uses now, and that no client is given by the system."""
    while True:
        first = random.randrange(20_000, 32_000)
        if all(_is_free(first + place) for place in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((HOST, port))
        return True
    return False


def _get(port: int, path: str) -> tuple[int, str]:
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    try:
        reply = uvloop.run(fetch(local_address(port), request, PATIENCE_S))
    except (ConnectionError, TimeoutError):
        return 0, ""
    return reply.status, reply.body.decode()


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _words(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []
