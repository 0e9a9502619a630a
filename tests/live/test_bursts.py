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
from benchmarks.tools.stillness import Stillness
from tests.live.serving import Serving, eventually

from timebound.clock import MonotonicClock
from timebound.lab.load.client import Reply

pytestmark = pytest.mark.live

COUNT = 1000
DEADLINE_S = 2.0
LAST_S = 0.4
"""In so much time before its answer everything is done for one of them that is done."""

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
        self.sent_at = self.answered_at = 0.0
        self.over = asyncio.Event()

    @property
    def late_s(self) -> float:
        """How long after its deadline its answer was there; below zero: before."""
        return self.answered_at - self.sent_at - DEADLINE_S

    def is_explained_by(self, *seen: Stillness) -> bool:
        """Whether the machine was too busy: those who make the answer waited for cores for longer than that."""
        return self.late_s < sum(each.waited_s(self.answered_at - LAST_S, self.answered_at) for each in seen)

    def sent(self, at: float) -> None:
        self.sent_at = at

    def answered(self, reply: Reply, received: float, noticed: float) -> None:
        self.status, self.quality, self.answered_at = reply.status, reply.quality, received
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


def unexplained(gateway_pid: int, understudy_pid: int, port: int) -> list[float]:
    """By how many ms each of a burst was late though the machine did not stand still; all must get their fallback."""
    with Stillness().beside(gateway_pid) as gateway, Stillness().beside(understudy_pid) as fallbacks:
        waiters = uvloop.run(ask_all(port))
        gateway.read()
        fallbacks.read()
    assert Counter((waiter.status, waiter.quality) for waiter in waiters) == {(200, "fallback"): COUNT}
    late = [waiter for waiter in waiters if waiter.late_s > 0 and not waiter.is_explained_by(gateway, fallbacks)]
    return [round(1e3 * waiter.late_s, 1) for waiter in late]


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
        worker, understudy = sorted(serving.workers(), key=lambda each: bool(each["is_understudy"]))
        os.kill(worker["pid"], number)
        eventually(lambda: computes_no_more(worker["pid"]), "the end, or the stop, of all its threads")
        bursts = [unexplained(serving.pid, understudy["pid"], serving.port) for _ in range(3)]
        shut.unlink()
    assert bursts == [[], [], []], "ms after the deadline"
