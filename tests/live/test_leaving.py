"""Workers that were told to leave, and do not: a thread of the user's holds the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually

pytestmark = pytest.mark.live

APP = """
import threading
import timebound as tb

class Stays(tb.Model):
    deadline = 5.0
    class Request(tb.Struct):
        n: int
    def load(self):
        threading.Thread(target=threading.Event().wait).start()  # no daemon: the interpreter waits for it for ever
    def infer(self, batch):
        return [1] * len(batch)
"""


def processes(serving: Serving) -> int:
    return len(serving.processes_left()) - 1  # but for the gateway


def test_old_workers_that_do_not_leave_after_a_reload_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    with Serving(file, "--workers", "2") as serving:
        for _ in range(2):
            assert serving.operator.post("/v1/reload").status_code == 200
        eventually(lambda: processes(serving) == 2, "only the newest workers are left")
        assert serving.gauge("worker_deaths_total") == 0, "nobody died who was not asked to leave"


def test_recycled_workers_that_do_not_leave_do_not_pile_up(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    with Serving(file, "--workers", "1", "--recycle-requests", "3") as serving:
        for generation in range(2):
            newest = max(worker["worker"] for worker in serving.workers())
            for number in range(4):
                assert serving.http.post("/predictions/stays", json={"n": number}).json() == 1
            eventually(lambda: len(serving.lines("recycling a worker")) > generation, "recycling")  # noqa: B023
            eventually(lambda: max(w["worker"] for w in serving.workers() if w["is_up"]) > newest, "the next")  # noqa: B023
        eventually(lambda: processes(serving) == 1, "only the newest worker is left")
