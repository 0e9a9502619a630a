"""A thousand who wait for the same moment while no worker is up: all get their fallback, in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import uvloop
from benchmarks.tools.stamped import Stamped
from tests.live.serving import Serving, eventually

from timebound.clock import MonotonicClock
from timebound.lab.load.client import Reply

pytestmark = pytest.mark.live

COUNT = 1000
DEADLINE_S = 2.0
SLACK_S = 0.1
"""For what the kernel and a busy machine add to a write that was made in time."""

MODEL = """
import os, time
from pathlib import Path
import timebound as tb

class Burst(tb.Model):
    deadline = 2.0
    example = {"n": 1}

    class Request(tb.Struct):
        n: int

    def load(self):
        while Path(os.environ["SHUT"]).exists():
            time.sleep(0.05)

    def infer(self, batch):
        return [request.n for request in batch]

    def fallback(self, request):
        return -request.n
"""


class Waiter:
    """One of them; by the kernel's own stamp."""

    def __init__(self) -> None:
        self.status = 0
        self.quality = ""
        self.seconds = 0.0
        self.over = asyncio.Event()

    def sent(self, at: float) -> None:
        self._sent = at

    def answered(self, reply: Reply, received: float, noticed: float) -> None:
        self.status, self.quality, self.seconds = reply.status, reply.quality, received - self._sent
        self.over.set()

    def lost(self, why: str) -> None:
        self.over.set()


async def ask_all(port: int) -> list[Waiter]:
    client = Stamped(port, MonotonicClock().now, lambda reply: None)
    waiters = [Waiter() for _ in range(COUNT)]
    for number, waiter in enumerate(waiters):
        body = b'{"n": %d}' % (number + 1)
        head = b"POST /predictions/burst HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.send(head + body, waiter)
    await asyncio.gather(*(waiter.over.wait() for waiter in waiters))
    client.close()
    return waiters


def computes_no_more(pid: int) -> bool:
    """Whether a signal has reached every thread of a process."""
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one of them has just ended
        return False
    return all(state in "TZX" for state in states)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_thousand_with_one_deadline_and_no_worker_all_get_their_fallback_in_time(
    tmp_path: Path, number: signal.Signals
) -> None:
    app, shut = tmp_path / "app.py", tmp_path / "shut"
    app.write_text(MODEL)
    with Serving(app, "--workers", "1", environment={"SHUT": str(shut)}) as serving:
        shut.touch()
        (worker,) = [worker for worker in serving.workers() if not worker["is_understudy"]]
        os.kill(worker["pid"], number)
        eventually(lambda: computes_no_more(worker["pid"]), "the end, or the stop, of all its threads")
        waiters = uvloop.run(ask_all(serving.port))
        shut.unlink()
    assert Counter((waiter.status, waiter.quality) for waiter in waiters) == {(200, "fallback"): COUNT}
    assert max(waiter.seconds for waiter in waiters) < DEADLINE_S + SLACK_S
