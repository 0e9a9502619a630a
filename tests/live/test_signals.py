"""The signals of a real server: in its metrics, and in its log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually

pytestmark = pytest.mark.live

SLOW = """
import time
import timebound as tb

class Slow(tb.Model):
    path = "/slow"
    max_batch = 1
    deadline = 1.0
    example = {"n": 1}

    class Request(tb.Struct):
        n: int

    def infer(self, batch):
        time.sleep(0.02 * len(batch))
        return [each.n for each in batch]
"""


def test_offered_load_shows_in_metrics_and_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with Serving(tmp_path / "slow.py", "--workers", "1") as serving:
        pause = threading.Event()

        def is_half_loaded() -> bool:
            for _ in range(10):  # 20 ms each, and as long in between
                assert serving.http.post("/slow", json={"n": 1}).status_code == 200
                pause.wait(0.02)
            return 0.2 < serving.gauge("load_ratio") < 0.8

        eventually(is_half_loaded, "a load between a fifth and four fifths")
        assert 0.2 < serving.gauge("utilisation") < 0.9
        assert serving.gauge("in_time_ratio") == 1.0
        line = serving.wait_for_line("signals")
        named = {
            "load_ratio",
            "in_time_ratio",
            "utilisation",
            "queue_seconds",
            "failed_ratio",
            "store_hit_ratio",
            "slots",
        }
        assert named <= set(line)
