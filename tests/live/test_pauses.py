"""The notes of what stood still during a benchmark tell a server that was stopped from a machine that was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from benchmarks.tools.pauses_told import Trouble, bare_clocks, clusters, longest_ms, notes, tell
from tests.live.serving import clean_environment, eventually
from tests.redis_server import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


def test_answers_that_were_late_together_are_told_together() -> None:
    late = [Trouble(at, 0.3, 200, "", is_first=False) for at in (10.0, 10.2, 10.4, 31.0)]
    assert [len(cluster) for cluster in clusters(late)] == [3, 1]


@contextmanager
def _noting(folder: Path) -> Iterator[int]:
    """A server whose gateway notes where it stands still: its process."""
    port = free_port()
    command = [sys.executable, "benchmarks/tools/pauses.py", str(folder), "serve", "tests/models/echo.py"]
    server = subprocess.Popen([*command, "--port", str(port), "--profiles", "none"], cwd=ROOT, env=clean_environment())

    def is_ready() -> bool:
        with suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).status == 200)
        return False

    try:
        eventually(is_ready, "a server that is ready")
        yield server.pid
    finally:
        server.terminate()
        server.wait(20)


def test_a_gateway_that_stood_still_is_told_with_its_moment_beside_a_clock_that_went_on(tmp_path: Path) -> None:
    def has(who: str, what: str, least_s: float = 0.0) -> bool:
        return any(
            note.who.startswith(who) and note.what == what and note.seconds >= least_s for note in notes(tmp_path)
        )

    with _noting(tmp_path) as pid, bare_clocks(tmp_path):
        eventually(lambda: has("gateway", "state") and has("clock", "begins"), "notes of both")
        since = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: time.monotonic() - since > 1.0, "a second")
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: has("gateway", "beat", 0.9), "a late beat")
        until = time.monotonic()
    longest = longest_ms(notes(tmp_path), since, until)
    assert longest["gateway"] > 900
    assert longest["bare clock"] < 0.8 * longest["gateway"]
    lines = list(tell(tmp_path, [Trouble(since, 1.0, 504, "deadline_missed", is_first=True)], since, until))
    assert "1 late or refused" in lines[0]
    assert any("gateway: beat" in line for line in lines)
