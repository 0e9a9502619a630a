"""The tour tells the truth: a plain request, traced through the real server, enters the files that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]


def test_the_tour_names_exactly_the_files_that_a_plain_request_enters() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "walk", "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, f"the walk is too long: {ran.stdout}{ran.stderr}"
    walked = json.loads(ran.stdout)["files"]
    tour = (ROOT / "docs" / "tour.md").read_text()
    rows = re.findall(r"^\| \d+ \| `([^`]+)` \|", tour, re.MULTILINE)
    assert sorted(rows) == sorted(walked)
