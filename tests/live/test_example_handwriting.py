"""The handwriting example with the files it ships: characters, isnull, re-sends by key, each network's vote."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.serving import PATIENCE_S, Serving

from timebound.demo.app import SAMPLES

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).parents[2] / "examples" / "handwriting"
IMAGES = {sample["title"]: sample["image"] for sample in SAMPLES}


def test_a_character_is_read_once_however_often_it_is_sent() -> None:
    with Serving(EXAMPLE / "app.py") as serving:
        first, again, other = (
            serving.http.post(
                "/inference", json={"esun_uuid": key, "esun_timestamp": at, "image": image, "retry": left}
            )
            for key, at, image, left in (
                ("a", 1623233200, IMAGES["勇"], 2),
                ("a", 1623233201, IMAGES["勇"], 1),
                ("b", 1623233202, IMAGES["你"], 2),
            )
        )
        assert first.json()["answer"] == "勇"
        assert (again.json(), again.headers["timebound-source"]) == (first.json(), "stored")
        assert other.json()["answer"] == "isnull"


def test_the_networks_of_torch_that_a_gpu_would_have_read_as_the_files_do() -> None:
    with Serving(EXAMPLE / "app.py", "--set", "device=host", "--max-batch", "2", "--hands", "0") as serving:
        assert serving.http.get("/v1/models").json()["models"][0]["device"] == "host"
        for title in ("勇", "玉"):
            body = {"esun_uuid": title, "image": IMAGES[title]}
            answer = serving.http.post("/inference", json=body, headers={"Timebound-Timeout-Ms": "10000"}).json()
            assert answer["answer"] == title
            assert answer["confidence"] > 0.8


def test_each_network_tells_its_vote() -> None:
    with Serving(EXAMPLE / "app.py") as serving:
        body = {"esun_uuid": "v", "image": IMAGES["玉"]}
        answered = serving.http.post("/inference", json=body, headers={"timebound-details": "votes"})
        votes = json.loads(answered.headers["timebound-votes"])
        assert [(vote["member"], vote["answer"]["answer"]) for vote in votes] == [
            ("mobile_slim", "玉"),
            ("mobile_wide", "玉"),
            ("lite", "玉"),
        ]


def contest(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE / "contest.py", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)


def test_the_contest_script_counts_every_request_and_holds_its_bars(tmp_path: Path) -> None:
    done = contest("--seconds", "3", "--clients", "4", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["late"] == figures["lost"] == 0
    assert 0 < figures["requests"] <= figures["attempts"]
    assert 20 < figures["pss_mib"] <= 300
    told = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert {("holds", "late"), ("holds", "lost"), ("holds", "pss_mib")} <= told


def test_the_contest_script_fails_where_requests_are_lost() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        done = contest("--seconds", "0.2", "--clients", "1", "--port", str(closed.getsockname()[1]))
    assert done.returncode == 1
    assert "contest: lost is" in done.stderr
