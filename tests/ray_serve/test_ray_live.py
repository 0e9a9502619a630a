"""A real Ray with two replicas that share a Redis: answers, new code, a killed replica, and the end."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.tools.ray_cluster import Cluster, is_installed, timebound_app
from tests.live.gate import Gate
from tests.live.serving import MODELS, eventually
from tests.redis_server import RedisServer

pytestmark = [
    pytest.mark.live,
    pytest.mark.long("ray"),
    pytest.mark.skipif(not is_installed(), reason="Ray is not installed: pip install 'timebound[ray]'"),
]

PATIENCE_S = 60.0
"""A replica takes seconds to start, and many of them on a busy machine."""


class Deployed:
    """An application of two replicas, from a file of its own that can be changed."""

    def __init__(self, cluster: Cluster, target: Path, computed: Path, store: str) -> None:
        self.cluster, self.target = cluster, target
        self._computed, self._store = computed, store
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{cluster.port}", timeout=PATIENCE_S, trust_env=False)

    def deploy(self, release: int, replicas: int = 2) -> None:
        options = {"store": self._store, "store_namespace": "ray", "store_patience": "5s", "admin_token": "t"}
        app = timebound_app(self.target, replicas, user_config={"release": release}, options=options)
        self.cluster.deploy(app, is_up=lambda: len(self.replicas()) == replicas)

    def replicas(self) -> set[int]:
        """The processes of the replicas that answer now."""
        found = set()
        with suppress(httpx.HTTPError, ValueError):
            for _ in range(8):
                found.add(int(self.http.get("/v1/models").json()["pid"]))
        return found

    def both(self) -> set[int]:
        """The processes of both replicas, once each of them has answered: chance may send all to one."""
        return eventually(lambda: found if len(found := self.replicas()) == 2 else None, "both replicas") or set()

    def answers_all(self) -> bool:
        """Whether many requests in a row are all answered: a replica that died is forgotten by the ingress."""
        with suppress(httpx.HTTPError):
            return {self.ask(value=9).status_code for _ in range(50)} == {200}
        return False

    def ask(self, **content: Any) -> httpx.Response:
        return self.http.post("/count", json=content)

    def ask_again_if_lost(self, **content: Any) -> httpx.Response:
        """As a client does whose connection ends without an answer; Ray's ingress may send it again by itself too."""
        try:
            return self.ask(**content)
        except (httpx.RemoteProtocolError, httpx.NetworkError):
            return self.ask(**content, retry=1)

    def computed(self, value: int) -> int:
        """How often this input has been computed so far."""
        return self._computed.read_text().split().count(str(value)) if self._computed.exists() else 0


@pytest.fixture(scope="module")
def deployed(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("ray")
    target, computed = folder / "app.py", folder / "computed"
    shutil.copy(MODELS / "counts.py", target)
    with Cluster(cores=2, variables={"COMPUTED": str(computed)}) as cluster:
        found = Deployed(cluster, target, computed, redis.url)
        found.deploy(release=1)
        yield found
        found.http.close()


def test_models_are_asked_through_rays_ingress_as_usual(deployed: Deployed) -> None:
    first, again = deployed.ask(value=4, id="a"), deployed.ask(value=4, id="a")
    assert (first.status_code, first.json()["value"], first.headers["timebound-quality"]) == (200, 4, "full")
    assert len(first.headers.get_list("x-request-id")) == 1
    # The key is known to both replicas, whichever of them it comes to.
    assert (again.content, again.headers["timebound-source"], deployed.computed(4)) == (first.content, "stored", 1)


def test_what_is_wrong_with_a_request_is_told_as_usual(deployed: Deployed) -> None:
    wrong = deployed.ask(value="four")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "bad_input")
    assert deployed.http.post("/v1/reload").status_code == 401
    slow = deployed.http.post("/count", json={"value": 5, "takes": 3}, headers={"X-Request-Timeout-Seconds": "0.3"})
    # Not Ray's 408: it is told shortly before Ray's own clock would end the request.
    assert (slow.status_code, slow.json()["code"]) == (504, "deadline_missed")


def test_another_user_config_loads_the_target_again_in_the_same_replicas(deployed: Deployed) -> None:
    replicas = deployed.both()
    deployed.target.write_text(deployed.target.read_text().replace('"value": output', '"release": 2, "value": output'))
    deployed.deploy(release=2)
    eventually(lambda: all("release" in deployed.ask(value=6).json() for _ in range(8)), "the new code in both")
    assert deployed.both() == replicas
    # Code that cannot be loaded costs nobody an answer: the old goes on.
    deployed.target.write_text("raise ValueError('no weights')\n")
    deployed.deploy(release=3)
    eventually(lambda: "the old goes on" in deployed.cluster.said(), "the log telling so")
    assert {deployed.ask(value=6).status_code for _ in range(20)} == {200}
    assert deployed.both() == replicas
    shutil.copy(MODELS / "counts.py", deployed.target)
    deployed.deploy(release=4)
    eventually(lambda: all("release" not in deployed.ask(value=6).json() for _ in range(8)), "the old code again")


def test_a_killed_replicas_request_is_answered_by_the_other_and_its_workers_leave(
    deployed: Deployed, gate: Gate
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(deployed.ask_again_if_lost, value=7, id="killed", gate=str(gate.path))
        (worker,) = eventually(lambda: holders(gate.path, deployed.cluster), "the request in a model")
        replica = parent(worker)
        os.kill(replica, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{worker}").exists(), "the worker gone, though its model still waits")
        gate.open()
        # The other replica takes it over when the dead one's claim is over.
        assert (answer.result().status_code, answer.result().json()["value"]) == (200, 7)
    assert deployed.ask(value=7, id="killed", retry=1).content == answer.result().content
    assert deployed.computed(7) == 2
    eventually(lambda: len(deployed.replicas() - {replica}) == 2, "another replica in its place", PATIENCE_S)


def test_a_replica_that_leaves_answers_what_it_accepted_and_the_end_leaves_no_process(deployed: Deployed) -> None:
    eventually(deployed.answers_all, "an ingress that knows only those that are there", PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        # One in each replica. Ray's ingress may end connections when it learns of another replica, also one that a
        # request is on its way on: that one nobody has accepted, and a client sends it again.
        ask = deployed.ask_again_if_lost
        answers = [pool.submit(ask, value=8, id=f"leaving-{number}", takes=5) for number in range(2)]
        eventually(
            lambda: deployed.computed(8) == 2 or any(each.done() for each in answers), "both in models", PATIENCE_S
        )
        assert [each.result().text for each in answers if each.done()] == []
        deployed.deploy(release=5, replicas=1)
        assert [answer.result().status_code for answer in answers] == [200, 200]
    # What was accepted was computed where it was: had it been cut off and sent again, it would be a third time.
    assert deployed.computed(8) == 2
    deployed.cluster.shut_down()
    assert [what for what in deployed.cluster.processes().values() if "timebound" in what.lower()] == []
    deployed.cluster.stop()
    assert deployed.cluster.processes() == {}


def holders(path: Path, cluster: Cluster) -> list[int]:
    """The processes of the cluster that have this file open."""
    found = []
    for pid in cluster.processes():
        with suppress(OSError):
            if any(os.readlink(file) == str(path) for file in Path(f"/proc/{pid}/fd").iterdir()):
                found.append(pid)
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
