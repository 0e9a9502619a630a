"""A Ray that nobody has set up for us: `make` deploys a pack, the docs' command runs, replicas come by load.

It has what `serve deploy` needs, and none of the variables that docs/ray.md says to set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.tools.ray_cluster import Cluster, is_installed, timebound_app
from tests.live.serving import MODELS, eventually
from tests.pack.small import known

from timebound.pack.pack import pack
from timebound.ray.node import HAPROXY, NICENESS, OPTIMIZED

pytestmark = [
    pytest.mark.live,
    pytest.mark.long("ray"),
    pytest.mark.skipif(not is_installed(), reason="Ray is not installed: pip install 'timebound[ray]'"),
]

PATIENCE_S = 60.0
STAYS_S = 15.0
"""Longer than the ten seconds of a signal and Ray's delay together: by then a replica would have been taken away."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    computed = tmp_path_factory.mktemp("ray") / "computed"
    as_ray_has_it = {HAPROXY: "0", OPTIMIZED: "0", NICENESS: "15", "COMPUTED": str(computed)}
    with Cluster(cores=4, variables=as_ray_has_it, dashboard=True) as found:
        yield found


def do(cluster: Cluster, folder: Path, *command: str) -> bool:
    """Whether this worked; the head may not be there yet."""
    env = {**cluster.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode == 0


def ask(cluster: Cluster, path: str, **content: Any) -> dict[str, Any] | None:
    """The answer, if there is one."""
    with suppress(httpx.HTTPError, ValueError):
        url = f"http://127.0.0.1:{cluster.port}{path}"
        answer = httpx.post(url, json=content, timeout=PATIENCE_S, trust_env=False)
        found: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
        return found
    return None


def test_a_pack_is_deployed_by_make_and_replicas_say_what_the_node_lacks(cluster: Cluster, tmp_path: Path) -> None:
    list(pack(known(tmp_path, port=cluster.port), tmp_path / "deploy", ["ray", "make"]))
    eventually(lambda: do(cluster, tmp_path / "deploy", "make", "deploy", "ON=ray"), "`serve deploy`", PATIENCE_S)
    eventually(lambda: cluster.replicas() == 2, "the replicas of serve.yaml", PATIENCE_S)
    eventually(lambda: ask(cluster, "/predictions/hello", pixels=[[0.0] * 8] * 8), "an answer of its model", PATIENCE_S)
    said = eventually(lambda: text if NICENESS in (text := cluster.said()) else None, "warnings in the log") or ""
    assert f"start Ray on each node with {HAPROXY}=1" in said
    assert f"start Ray on each node with {OPTIMIZED}=1" in said
    assert f"start Ray on each node with {NICENESS}=0" in said


def test_one_replica_that_has_no_pause_becomes_two_and_stays_two_under_the_same_load(cluster: Cluster) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "policy": {"policy_function": "timebound.ray:policy"},
    }
    app = timebound_app(MODELS / "counts.py", options={"slots": 1}, autoscaling_config=scaling)
    cluster.deploy(app, is_up=lambda: ask(cluster, "/count", value=0) is not None)
    eventually(lambda: cluster.replicas() == 1, "one replica", PATIENCE_S)
    is_over = threading.Event()

    def go_on_asking() -> None:
        while not is_over.is_set():
            ask(cluster, "/count", value=1, takes=0.05)

    clients = [threading.Thread(target=go_on_asking) for _ in range(6)]
    for client in clients:
        client.start()
    try:
        eventually(lambda: cluster.replicas() == 2, "a second replica", PATIENCE_S)
        end = time.monotonic() + STAYS_S
        while time.monotonic() < end:
            assert cluster.replicas() == 2
            is_over.wait(0.2)
    finally:
        is_over.set()
        for client in clients:
            client.join()
    eventually(lambda: cluster.replicas() == 1, "one of them gone, as there is nothing to do", PATIENCE_S)


def test_the_command_of_the_docs_serves_an_app_from_the_working_directory(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copy(MODELS / "counts.py", tmp_path / "app.py")
    start = ["serve", "run", "--non-blocking", "--working-dir", ".", "--name", "docs", "--route-prefix", "/docs"]
    eventually(lambda: do(cluster, tmp_path, *start, "timebound.ray:app", "target=app.py"), "`serve run`", PATIENCE_S)
    answer = eventually(lambda: ask(cluster, "/docs/count", value=3), "an answer", PATIENCE_S)
    assert answer is not None
    assert answer["value"] == 3
