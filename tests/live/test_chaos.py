"""The short form of the chaos suite: faults at random, and every request gets exactly one right answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.serving import clean_environment

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
]

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
SLACK_MS = 250
"""A shared machine may take the gateway's cores away; to the millisecond this is measured on a quiet one."""


def test_every_request_gets_exactly_one_right_answer_whatever_happens(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(CHAOS), "--seconds", "15", "--only", "faults", "--json", str(file)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert file.exists(), done.stderr
    figures = json.loads(file.read_text())
    assert figures["faults"] >= 5
    assert (figures["lost"], figures["wrong"], figures["answered_twice"]) == (0, 0, 0), done.stderr
    assert figures["latest_ms"] < 1000 + SLACK_MS, done.stderr
