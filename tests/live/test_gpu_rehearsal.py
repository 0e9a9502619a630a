"""The benchmark for GPUs works: it is rehearsed on the stand-in, with every figure that its bars ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.serving.gpu import BARS_OF, missing
from tests.live.serving import clean_environment

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_benchmark_for_gpus_comes_to_its_end_on_the_stand_in_with_all_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/serving/gpu.py", "--rehearse", "--json", figures],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    told = json.loads(figures.read_text())
    assert told["torch"]
    assert told["gpu_compiled_after_ready"] == 0
    assert "gpu_worker_killed_unanswered" in told
    for load in ("first_minute", "overload"):
        assert told[f"gpu_{load}_longest_pause_ms"].keys() == {"bare clock", "client", "gateway", "hand", "worker"}


def test_a_bar_whose_parts_were_chosen_and_gave_no_figure_is_named() -> None:
    figures = {bar.name for bar in BARS_OF["serve"]} - {"gpu_c1_ms"}
    assert missing(["serve"], figures) == ["gpu_c1_ms"]
    assert missing(["serve", "ceiling"], {*figures, "gpu_c1_ms"}) == ["gpu_c256_ratio", "gpu_c1_over_bare_ms"]
