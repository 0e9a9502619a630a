"""`timebound tune` on a real model: what it writes is what a server then uses, and a run cut short goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.live.serving import PATIENCE_S, clean_environment

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

    def infer(self, batch):
        time.sleep(0.01)
        return [request.n for request in batch]
"""


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP) if not (folder / "app.py").exists() else None
    command = [sys.executable, "-m", "timebound.cli", "tune", "app.py", "--seconds", "600ms", "--rounds", "1", *flags]
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
