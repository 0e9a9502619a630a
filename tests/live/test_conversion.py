"""`timebound convert` as people type it: what it prints, what it writes, and what an interruption leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.live.serving import PATIENCE_S, Serving, clean_environment
from tests.models.torch_files import save_export

pytestmark = pytest.mark.live


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "timebound.cli", "convert", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment())


def test_a_converted_file_can_be_served(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((32, 3), dtype=np.float32))
    arguments = (save_export(tmp_path / "net.pt2"), tmp_path / "net.onnx", "--samples", tmp_path / "x.npz")
    done = start(*arguments)
    out, said = done.communicate(timeout=3 * PATIENCE_S)
    assert done.returncode == 0, said
    assert out.splitlines()[0].split() == ["before", "after"]
    assert "exporting to ONNX ..." in said
    with Serving(tmp_path / "net.onnx") as serving:
        assert serving.http.post("/predictions/net", json={"x": [1, 2, 3]}).json() == {"output": [2, 4, 6]}


def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = start(tmp_path / "gone.pt2", tmp_path / "net.onnx")
    _, said = done.communicate(timeout=3 * PATIENCE_S)
    assert done.returncode == 2
    assert "gone.pt2 does not exist" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_an_interruption_leaves_nothing_half_written(tmp_path: Path) -> None:
    source, out = save_export(tmp_path / "net.pt2"), tmp_path / "net.onnx"
    process = start(source, out)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("exporting"):
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode in (130, 2)  # torch may turn the interruption into a failed export
    assert [file.name for file in tmp_path.iterdir()] == ["net.pt2"]
