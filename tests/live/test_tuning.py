"""`timebound tune` on a real model: what it writes is what a server then uses, and a run cut short goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.live.serving import PATIENCE_S, Serving, clean_environment
from tests.models.onnx_files import save_doubler

from timebound.machine.processor import has_bf16

pytestmark = pytest.mark.live

APP = """
import time
import timebound as tb

class Naps(tb.Model):
    deadline = 0.5
    example = {"n": 1}
    max_batch = 4

    class Request(tb.Struct):
        n: int

    def load(self):
        print("what a model prints is no measurement")

    def infer(self, batch):
        time.sleep(0.01)  # a batch that takes time: there is something to tune
        return [request.n for request in batch]
"""


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP) if not (folder / "app.py").exists() else None
    short = ["--seconds", "600ms", "--rounds", "1", "--anyway"]
    command = [sys.executable, "-m", "timebound.cli", "tune", "app.py", *short, *flags]
    environment = {**clean_environment(), "TIMEBOUND_PROFILES": str(folder / "profiles")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_settings_and_profile_are_written_and_a_run_cut_short_goes_on(tmp_path: Path) -> None:
    cut = start(tmp_path)
    assert cut.stderr is not None
    for line in cut.stderr:  # the second step has begun, so the first one is saved
        if "how much it can do" in line or "2 threads" in line:
            break
    cut.send_signal(signal.SIGINT)
    out, err = cut.communicate(timeout=PATIENCE_S * 2)
    assert cut.returncode == 130, err
    assert "batches with 1 thread" in out
    assert not (tmp_path / "timebound.toml").exists()

    whole = start(tmp_path)
    out, err = whole.communicate(timeout=PATIENCE_S * 6)
    assert whole.returncode == 0, err
    assert "going on from an earlier run" in err
    assert "measuring batches with 1 thread\n" not in err
    settings = tomllib.loads((tmp_path / "timebound.toml").read_text())
    assert set(settings) == {"workers", "slots", "threads"}
    assert "answered" in out
    assert list((tmp_path / "profiles").glob("app-*.json")), "the profile that the scheduler starts from"

    again = start(tmp_path)
    out, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0
    assert "measuring" not in err


def test_a_model_that_cannot_be_tuned_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("[request.n for request in batch]", "[1 / 0]"))
    broken = start(tmp_path)
    _, err = broken.communicate(timeout=PATIENCE_S)
    assert broken.returncode == 2
    assert "ZeroDivisionError" in err


ONNX_APP = """
import numpy as np
import timebound as tb

class Twice(tb.Model):
    deadline = 0.5
    example = {"x": [1.0, 2.0, 3.0]}
    max_batch = 2

    class Request(tb.Struct):
        x: list[float]

    def load(self):
        self.net = tb.onnx("twice.onnx")

    def prepare(self, request):
        return np.array(request.x, np.float32)

    def finish(self, output, request):
        return {"y": output}
"""


@pytest.mark.long
def test_engines_are_compared_and_the_one_that_serves_is_written(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ONNX_APP)
    save_doubler(tmp_path / "twice.onnx")
    out, err = start(tmp_path, "--seconds", "300ms").communicate(timeout=PATIENCE_S * 6)
    if find_spec("openvino") is None:
        assert "openvino-f32 was not tried: OpenVINO is not installed (pip install 'timebound[openvino]')" in out, err
    else:
        assert "openvino-f32 answers 64 of 64 inputs (100.0%" in out, err
    if not has_bf16():
        assert "openvino-bf16 was not tried: " in out
    engine = tomllib.loads((tmp_path / "timebound.toml").read_text())["engine"]
    with Serving(tmp_path / "app.py", "--engine", engine) as server:
        assert server.http.get("/v1/models").json()["models"][0]["engine"] == engine
        answer = server.http.post("/predictions/twice", json={"x": [1.0, 2.0, 3.0]})
        assert answer.json() == {"y": [2.0, 4.0, 6.0]}


@pytest.mark.skipif(find_spec("openvino") is None, reason="the extra openvino is not installed")
def test_a_server_on_openvino_answers_from_all_slots(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ONNX_APP)
    save_doubler(tmp_path / "twice.onnx")
    with Serving(tmp_path / "app.py", "--engine", "twice=openvino-f32", "--slots", "2", "--threads", "1") as server:
        with ThreadPoolExecutor(8) as pool:
            bodies = [{"x": [float(n), 0.5, 1.0]} for n in range(40)]
            answers = list(pool.map(lambda body: server.http.post("/predictions/twice", json=body).json(), bodies))
        assert answers == [{"y": [2.0 * n, 1.0, 2.0]} for n in range(40)]
        assert [worker["slots"] for worker in server.workers()] == [2]


TORCH_APP = """
import numpy as np
import timebound as tb
import torch

class Twice(tb.Model):
    deadline = 0.5
    example = {"x": [1.0, 2.0, 3.0]}
    max_batch = 2

    class Request(tb.Struct):
        x: list[float]

    def load(self):
        net = torch.nn.Linear(3, 3, bias=False)
        net.weight.data = 2 * torch.eye(3)
        self.net = tb.torch(net, compile=False, OPEN)

    def prepare(self, request):
        return np.array(request.x, np.float32)

    def finish(self, output, request):
        return {"y": output}
"""


def tuned(folder: Path, given: str) -> tuple[str, dict[str, object]]:
    """What was said and written about a network opened so; a server with those settings answers."""
    (folder / "app.py").write_text(TORCH_APP.replace("OPEN", given))
    out, err = start(folder, "--seconds", "300ms").communicate(timeout=PATIENCE_S * 6)
    assert (folder / "timebound.toml").exists(), err
    written = tomllib.loads((folder / "timebound.toml").read_text())
    flags = [word for name, value in written.items() for word in (f"--{name}", str(value))]
    with Serving(folder / "app.py", *flags) as server:
        answer = server.http.post("/predictions/twice", json={"x": [1.0, 2.0, 3.0]})
        assert answer.json() == {"y": [2.0, 4.0, 6.0]}
    return out, written


@pytest.mark.long
def test_modes_of_torch_are_compared_and_the_one_that_serves_is_written(tmp_path: Path) -> None:
    out, written = tuned(tmp_path, 'device="cpu"')
    if has_bf16():
        assert "bfloat16 answers 64 of 64 inputs (100.0%, 63 of them noisy copies) as the unchanged network does" in out
    else:
        assert "bfloat16 was not tried: this processor has no instructions for bf16" in out
    assert written["torch"] in {"own", "bfloat16"}
    assert "hands" not in written


@pytest.mark.long
def test_with_a_device_hands_are_tried_and_written(tmp_path: Path) -> None:
    out, written = tuned(tmp_path, 'device="host", dtype="float32"')
    assert "x no hands x" in out
    assert "hands" in written
    assert "torch" not in written
