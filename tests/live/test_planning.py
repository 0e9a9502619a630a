"""`timebound plan` on the profile that a real server left behind; and what it says where there is none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.serving import MODELS, PATIENCE_S, Serving, clean_environment

pytestmark = pytest.mark.live


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**clean_environment(), "TIMEBOUND_PROFILES": str(folder / "profiles")}
    command = [sys.executable, "-m", "timebound.cli", "plan", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False
    )


def test_a_server_leaves_a_profile_that_a_plan_is_made_from(tmp_path: Path) -> None:
    target = MODELS / "echo.py"
    with Serving(target, environment={"TIMEBOUND_PROFILES": str(tmp_path / "profiles")}) as server:
        path = server.http.get("/v1/models").json()["models"][0]
        for _ in range(40):
            assert server.http.post(path["paths"][0], json=path["example"]).status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    flags = ("--rate", "100", "--deadline", "500ms", "--price", "5/month", "--cores", "1")
    done = plan(tmp_path, str(target), *flags, "--json", "plan.json", "--html", "plan.html")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "plan.json").read_text())
    (offer,) = document["offers"]
    assert offer["machines"] == 2  # one does it, and one may be down
    assert offer["per_month"] == 10.0
    assert "cheapest: 2 x given, 10.00 a month" in done.stdout
    assert "learned from" in done.stdout  # forty single items are little to plan on
    assert "<svg" in (tmp_path / "plan.html").read_text()


def test_without_a_profile_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    done = plan(tmp_path, "app.py", "--rate", "500", "--deadline", "1s")
    assert done.returncode == 2
    assert "`timebound tune app.py` measures one" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("app.py", "--deadline", "1s"), "give --rate"),
        (("app.py", "--rate", "5"), "give --deadline"),
        (("--rate", "5", "--deadline", "1s"), "--profile FILE"),
        (("app.py", "--rate", "5", "--deadline", "1s", "--cores", "1"), "belong together"),
        (("app.py", "--rate", "5", "--deadline", "1s", "--average", "9"), "above the peak"),
        (("app.py", "--rate", "5", "--deadline", "1s", "--headroom", "200%"), "a share below 1"),
        (("app.py", "--rate", "5", "--deadline", "1s", "--machines", "none.toml"), "--print-machines"),
        (("--profile", "none.json", "--rate", "5", "--deadline", "1s"), "there is no profile at none.json"),
    ],
)
def test_mistakes_are_told_in_a_sentence(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = plan(tmp_path, *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_machines_can_be_printed_and_used(tmp_path: Path) -> None:
    printed = plan(tmp_path, "--print-machines")
    assert printed.returncode == 0
    assert "[small]" in printed.stdout
    assert "examples:" in plan(tmp_path, "--help").stdout
