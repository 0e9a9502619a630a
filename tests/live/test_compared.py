"""The comparison of everyday use measures Timebound: what its two files serve is asked, and answered rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.serving.comparison import PAGE
from tests.live.serving import clean_environment

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


def test_both_apps_of_timebound_are_started_and_answer_and_a_part_of_a_run_writes_no_page(tmp_path: Path) -> None:
    before, out, log = PAGE.read_text(), tmp_path / "figures.json", tmp_path / "install.log"
    program = [sys.executable, "benchmarks/serving/comparison.py", "--only", "timebound"]
    done = subprocess.run(
        [*program, "--quick", "--json", out, "--log", log],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    figures = json.loads(out.read_text())
    assert figures["unanswered"] == 0
    assert figures["hello_s_timebound"] > 0
    assert figures["network_s_timebound"] > 0
    assert log.read_text().startswith("timebound ")
    assert PAGE.read_text() == before
