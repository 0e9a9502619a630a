"""`timebound results` looks through a cluster without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving, clean_environment, eventually
from tests.redis_cluster import ClusterServers

pytestmark = pytest.mark.live


def results(*arguments: str) -> str:
    command = [sys.executable, "-m", "timebound.cli", "results", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_results_of_a_server_are_listed_and_cleared_on_its_cluster(cluster: ClusterServers, tmp_path: Path) -> None:
    space = f"cli-{os.urandom(4).hex()}"
    where = ("--store", cluster.url, "--store-namespace", space)
    computed = {"COMPUTED": str(tmp_path / "computed")}
    options = ("--store-patience", "5", "--workers", "1")
    with Serving(MODELS / "counts.py", *where, *options, environment=computed) as serving:
        for number in range(1, 21):
            answer = serving.http.post("/count", json={"value": number, "id": f"key-{number}"})
            assert answer.status_code == 200
        eventually(lambda: len(cluster.keys(f"{space}:*:r:*")) == 20, "all results kept")
    listed = json.loads(results("ls", *where, "--json"))["results"]
    assert {each["key"] for each in listed} == {f"key-{number}" for number in range(1, 21)}
    results("clear", "counts", "key-3", *where)
    assert len(cluster.keys(f"{space}:*:r:*")) == 19
    results("clear", *where, "--yes")
    assert cluster.keys(f"{space}:*:r:*") == []
