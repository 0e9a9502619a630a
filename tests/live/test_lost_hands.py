"""Preparation in processes of its own, behind a server: faults of it cost what they must, and no worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "handed.py", "--workers", "1", "--slots", "1", "--hands", "2", "--deadline", "20") as serving:
        yield serving


def worker_of(serving: Serving) -> int:
    return next(int(worker["pid"]) for worker in serving.workers() if worker["is_up"])


def hands_of(worker: int) -> list[int]:
    """The processes that prepare for a worker."""
    found = Path(f"/proc/{worker}/task").glob("*/children")
    return [int(pid) for children in found for pid in children.read_text().split()]


def ask(serving: Serving, count: int, **odd_one: object) -> list[httpx.Response]:
    """So many requests at once; the middle one has these fields."""
    with ThreadPoolExecutor(count) as pool:
        bodies = [{"n": n, **(odd_one if n == count // 2 else {})} for n in range(count)]
        return list(pool.map(lambda body: serving.http.post("/handed", json=body), bodies))


def test_a_body_that_kills_whoever_prepares_it_fails_alone_and_is_then_locked_up(serving: Serving, gate: Gate) -> None:
    # Given a request that keeps the slot busy, so that the others wait and go together
    worker = worker_of(serving)
    with serving.wire() as wire, ThreadPoolExecutor(1) as pool:
        wire.send(post("/handed", {"n": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        asked = pool.submit(ask, serving, 24, doing="crash")
        eventually(lambda: serving.is_holding(running=1, queued=24), "the others behind it")
        gate.open()
        answers = asked.result()
    # Then one of them is lost, and no worker
    codes = [answer.json().get("code", "") for answer in answers]
    assert codes.count("crashes_worker") == 1
    assert [answer.json()["twice"] for answer in answers if answer.status_code == 200] == [
        2.0 * n for n in range(24) if n != 12
    ]
    assert worker_of(serving) == worker
    # And it is not tried again
    lost = serving.gauge('quarantined_total{model="handed",version="1"}')
    assert serving.http.post("/handed", json={"n": 12, "doing": "crash"}).json()["code"] == "crashes_worker"
    assert (lost, worker_of(serving)) == (1, worker)


def test_hands_that_are_killed_under_load_cost_no_request(serving: Serving) -> None:
    worker = worker_of(serving)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(lambda: [answer for _ in range(5) for answer in ask(serving, 24)])
        killed = 0
        while not load.done():
            for pid in hands_of(worker)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            eventually(lambda: load.done() or len(hands_of(worker)) == 2, "another hand")
    assert killed
    assert {answer.status_code for answer in load.result()} == {200}
    assert worker_of(serving) == worker


def test_hands_go_with_their_worker(serving: Serving) -> None:
    worker = worker_of(serving)
    hands = eventually(lambda: hands_of(worker), "hands")
    os.kill(worker, signal.SIGKILL)
    assert {answer.status_code for answer in ask(serving, 8)} == {200}
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hands), "the end of the hands")
    assert worker_of(serving) != worker


def test_a_reload_brings_new_hands_and_lets_the_old_ones_go(serving: Serving) -> None:
    worker = worker_of(serving)
    hands = eventually(lambda: hands_of(worker), "hands")
    assert serving.operator.post("/v1/reload").status_code == 200
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hands), "the end of the hands")
    assert {answer.status_code for answer in ask(serving, 8)} == {200}


def test_hands_do_not_outlive_a_gateway_that_is_killed(serving: Serving) -> None:
    eventually(lambda: hands_of(worker_of(serving)), "hands")
    os.kill(serving.pid, signal.SIGKILL)
    eventually(lambda: not serving.processes_left(), "the end of workers and hands")
