"""Workers that die: their requests are computed again; the server stays, and says when it is ready."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live


@pytest.fixture
def load_gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate that is open for the first worker; shut it to hold up the next one's load."""
    with Gate(tmp_path / "load_gate") as gate:
        gate.open()
        yield gate


def kill_worker(serving: Serving) -> int:
    """Kill the first worker that is up; its pid."""
    pid = next(worker["pid"] for worker in serving.workers() if worker["is_up"])
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def test_a_request_whose_worker_is_killed_is_computed_again(gate: Gate, load_gate: Gate) -> None:
    environment = {"LOAD_GATE": str(load_gate.path)}
    with Serving(MODELS / "waits.py", "--workers", "1", environment=environment) as serving, serving.wire() as wire:
        # Given a request in a worker
        wire.send(post("/wait", {"value": 5, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the request in the worker")
        # When that worker is killed and the next one is not up yet
        load_gate.shut()
        killed = kill_worker(serving)
        # Then the server is live but not ready
        eventually(lambda: not serving.is_ready(), "readiness turning false")
        assert serving.http.get("/livez").status_code == 200
        assert serving.http.get("/v1/models").json()["models"][0]["state"] != "ready"
        eventually(lambda: serving.is_holding(running=0, queued=1), "the request waiting for the next worker")
        # And with the next one it is ready again, and the request is answered as if nothing had been
        load_gate.open()
        eventually(serving.is_ready, "readiness turning true")
        gate.open()
        assert wire.read().json() == {"value": 5}
        assert killed not in [worker["pid"] for worker in serving.workers()]
        assert serving.gauge("worker_deaths_total") == 1
        wire.send(post("/wait", {"value": 6}))
        assert wire.read().json() == {"value": 6}


def test_a_request_whose_deadline_comes_before_the_next_worker_is_told_so(gate: Gate, load_gate: Gate) -> None:
    environment = {"LOAD_GATE": str(load_gate.path)}
    with Serving(MODELS / "waits.py", "--workers", "1", environment=environment) as serving, serving.wire() as wire:
        wire.send(post("/wait", {"value": 5, "gate": str(gate.path)}, "Timebound-Timeout-Ms: 2000"))
        eventually(lambda: serving.is_holding(running=1), "the request in the worker")
        load_gate.shut()
        kill_worker(serving)
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (504, "deadline_missed")
        load_gate.open()
        eventually(serving.is_ready, "readiness turning true")


def test_requests_of_other_workers_are_not_touched(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "2") as serving:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers")
        with serving.wire() as one, serving.wire() as other:
            one.send(post("/wait", {"value": 1, "gate": str(gate.path)}))
            eventually(lambda: serving.is_holding(running=1), "the first request in a worker")
            other.send(post("/wait", {"value": 2, "gate": str(gate.path)}))
            eventually(lambda: serving.is_holding(running=2), "the second request in the other")
            kill_worker(serving)
            assert serving.is_ready()
            serving.wait_for_line("worker is gone")
            gate.open()
            assert [one.read().json(), other.read().json()] == [{"value": 1}, {"value": 2}]


def test_a_request_that_kills_its_workers_fails_and_the_server_stays() -> None:
    with Serving(MODELS / "dies.py", "--workers", "1") as serving:
        for _ in range(2):
            answer = serving.http.post("/predictions/dies", json={"die": True})
            assert (answer.status_code, answer.json()["code"]) == (500, "crashes_worker")
        assert serving.http.post("/predictions/dies", json={"die": False}).json() == "alive"
        # A SIGKILL may come from outside: it takes three to be sure, and then none.
        assert serving.gauge("worker_deaths_total") == 3
        # They were well until that batch, and others need the next ones: no pause before any of them.
        eventually(lambda: len(serving.lines("worker is up")) == 4, "three new workers")
        assert not serving.lines("starting a new worker")


def test_a_worker_that_cannot_load_any_more_is_tried_again_until_it_can(tmp_path: Path) -> None:
    app, away = tmp_path / "app.py", tmp_path / "away.py"
    shutil.copy(MODELS / "echo.py", app)
    with Serving(app, "--workers", "1") as serving:
        app.rename(away)
        kill_worker(serving)
        serving.wait_for_line("worker 2 cannot load")
        assert serving.http.get("/livez").status_code == 200
        assert not serving.is_ready()
        eventually(lambda: len(serving.lines("starting a new worker")) >= 2, "two more tries")
        pauses = [line["in_s"] for line in serving.lines("starting a new worker")]
        assert pauses == sorted(set(pauses)), "each pause is longer than the one before"
        away.rename(app)
        eventually(serving.is_ready, "readiness after the file is back")
        assert serving.http.post("/inference", json={"value": 1}).json()["value"] == 1


def test_two_batches_run_at_once_in_a_worker_with_two_slots() -> None:
    with Serving(MODELS / "meets.py", "--workers", "1", "--slots", "2") as serving:
        with serving.wire() as one, serving.wire() as other:
            # Each waits inside infer for the other: one after the other they would never be done.
            for wire in (one, other):
                wire.send(post("/predictions/meets", {"meet": True}))
            assert {one.read().json(), other.read().json()} == {"slot-0", "slot-1"}
        assert [worker["slots"] for worker in serving.workers()] == [2]


@pytest.mark.parametrize("slot", ["slot-0", "slot-1"])
def test_one_death_of_a_worker_does_not_count_twice_because_it_has_a_free_slot(gate: Gate, slot: str) -> None:
    with Serving(MODELS / "meets.py", "--workers", "1", "--slots", "2") as serving, serving.wire() as wire:
        # Given a request in one slot while the other is free; slots take turns
        if slot == "slot-1":
            assert serving.http.post("/predictions/meets", json={}).json() == "slot-0"
        wire.send(post("/predictions/meets", {"gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the request in the worker")
        # When the worker dies, once
        kill_worker(serving)
        serving.wait_for_line("worker is gone")
        gate.open()
        # Then the request is computed again
        answer = wire.read()
        assert answer.status == 200, answer.json()


def test_every_batch_of_a_worker_that_dies_is_computed_again(gate: Gate) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(Serving(MODELS / "meets.py", "--workers", "1", "--slots", "2"))
        wires = [stack.enter_context(serving.wire()) for _ in range(2)]
        for wire in wires:
            wire.send(post("/predictions/meets", {"gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=2), "the requests in the worker")
        kill_worker(serving)
        serving.wait_for_line("worker is gone")
        gate.open()
        assert {wire.read().json() for wire in wires} == {"slot-0", "slot-1"}
