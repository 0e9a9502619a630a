"""Torch files and networks on a real server: served by their signature, in threads, as members of an ensemble."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.live.serving import Serving
from tests.models.onnx_files import save_doubler
from tests.models.torch_files import save_export, save_script

pytestmark = pytest.mark.live

ENSEMBLE = """
import numpy as np
import timebound as tb


class Mixed(tb.Model):
    example = {"x": [1.0, 2.0, 3.0]}

    class Request(tb.Struct):
        x: list[float]

    def load(self):
        self.net = tb.ensemble(tb.torch("net.pt2"), tb.torch("net.pt"), tb.onnx("net.onnx"), combine="mean")

    def prepare(self, request):
        return np.array(request.x, np.float32)

    def finish(self, output, request):
        return {"y": output}
"""


def test_an_exported_file_is_served_in_threads_that_share_it(tmp_path: Path) -> None:
    with Serving(save_export(tmp_path / "net.pt2"), "--slots", "2") as serving:
        (info,) = serving.http.get("/v1/models").json()["models"]
        assert info["backend"] == "torch"
        assert [worker["slots"] for worker in serving.workers()] == [2]
        bodies = [{"x": [float(number), 0.0, 1.0]} for number in range(40)]
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda body: serving.http.post("/predictions/net", json=body).json(), bodies))
        assert answers == [{"output": [2.0 * number, 0.0, 2.0]} for number in range(40)]
        refusal = serving.http.post("/predictions/net", json={"x": [1.0]})
        assert (refusal.status_code, refusal.json()["field"]) == (422, "x")


def test_torch_and_onnx_answer_together(tmp_path: Path) -> None:
    save_export(tmp_path / "net.pt2")
    save_script(tmp_path / "net.pt")
    save_doubler(tmp_path / "net.onnx")
    (tmp_path / "app.py").write_text(ENSEMBLE)
    with Serving(tmp_path) as serving:
        answer = serving.http.post("/predictions/mixed", json={"x": [1.0, 2.0, 3.0]})
        assert answer.json() == {"y": [2.0, 4.0, 6.0]}
        assert answer.headers["timebound-quality"] == "full"
