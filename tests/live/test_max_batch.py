"""One number that no batch of a server goes beyond."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.serving import Serving

pytestmark = pytest.mark.live

APP = """
import time
import timebound as tb

class Wide(tb.Model):
    json = True
    deadline = 10.0
    example = [1]

    def infer(self, batch):
        time.sleep(0.001)
        return [len(batch)] * len(batch)

class Narrow(Wide):
    max_batch = 1
"""


def test_no_batch_is_larger_than_the_server_is_told_to_make(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "timebound.toml").write_text("max_batch = 2\n")
    with Serving(tmp_path, "--workers", "1") as serving:
        sizes = {
            name: serving.http.post(f"/predictions/{name}:batch", json=[[1]] * 60).json() for name in ("wide", "narrow")
        }
        told = {model["name"]: model["max_batch"] for model in serving.http.get("/v1/models").json()["models"]}
    assert told == {"wide": 2, "narrow": 1}, "a model's own limit stays if it is smaller"
    assert (max(sizes["wide"]), max(sizes["narrow"])) == (2, 1)
