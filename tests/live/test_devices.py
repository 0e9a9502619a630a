"""A server whose models are on a device: here on the stand-in that behaves as a GPU does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.live.serving import MODELS, PATIENCE_S, Serving, eventually

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "loses_device.py", "--hands", "0") as serving:
        yield serving


def test_a_worker_with_a_device_has_two_slots_whatever_the_cores(serving: Serving) -> None:
    model = serving.http.get("/v1/models").json()["models"][0]
    assert (model["device"], model["depth"]) == ("host", 2)
    assert [worker["slots"] for worker in serving.workers()] == [2]


def test_a_device_that_fails_costs_its_worker_and_no_request(serving: Serving, tmp_path: Path) -> None:
    before = serving.workers()[0]["pid"]
    answer = serving.http.post("/loses", json={"n": -1, "once": str(tmp_path / "once")})
    assert (answer.status_code, answer.json()) == (200, {"n": -1})
    assert serving.workers()[0]["pid"] != before
    assert serving.wait_for_line("worker is gone")["code"] == 71
    assert (
        'timebound_batches_lost_total{loss="device",model="losesdevice",version="1"} 1'
        in serving.http.get("/metrics").text
    )


def test_a_request_whose_device_fails_again_and_again_is_given_up(serving: Serving) -> None:
    eventually(serving.is_ready, "the next worker")
    assert serving.http.post("/loses", json={"n": -2}).json()["code"] == "crashes_worker"
    eventually(serving.is_ready, "the next worker")
    assert serving.http.post("/loses", json={"n": 2}).json() == {"n": 2}


@pytest.fixture(scope="module")
def nets() -> Iterator[Serving]:
    with Serving(MODELS / "on_device.py", "--hands", "0") as serving:
        yield serving


def test_a_network_that_cannot_be_captured_says_so_at_the_start_and_why(nets: Serving) -> None:
    said = nets.wait_for_line("_Looking runs without being captured")["message"]
    assert "while capturing" in said
    assert "on_device.py, line" in said


def test_a_shape_that_takes_long_when_it_is_first_met_costs_no_worker_and_those_behind_it_wait(nets: Serving) -> None:
    def ask(numbers: list[float]) -> httpx.Response:
        return nets.http.post("/predictions/slowatfirst", json={"numbers": numbers})

    pid = ask([1.0]).json()["pid"]
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, [1.0, 2.0])
        eventually(lambda: nets.gauge("requests_pending") == 1, "the first in its worker")
        behind = threads.submit(ask, [4.0])
        answers = [each.result() for each in (long, behind)]
    assert [answer.json() for answer in answers] == [{"sum": 3.0, "pid": pid}, {"sum": 4.0, "pid": pid}]
    assert ask([1.0, 3.0]).json() == {"sum": 4.0, "pid": pid}
    assert 'timebound_device_unprepared_total{model="slowatfirst",version="1"} 2' in nets.http.get("/metrics").text


@pytest.fixture(scope="module")
def three() -> Iterator[Serving]:
    """Two workers with a device each; the class says cuda, and the option host."""
    with Serving(MODELS / "three_on_device.py", "--device", "host", "--workers", "2", "--hands", "2") as serving:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers", within_s=3 * PATIENCE_S)
        yield serving


def ask_many(serving: Serving, count: int, headers: dict[str, str] | None = None) -> list[httpx.Response]:
    """So many requests at once, for the numbers 0, 1, 2 ..."""

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=serving.url, timeout=30, trust_env=False, limits=httpx.Limits()) as http:
            asked = [http.post("/predictions/three", json={"n": n}, headers=headers) for n in range(count)]
            return await asyncio.gather(*asked)

    return asyncio.run(ask_all())


def test_what_processes_beside_the_workers_prepared_is_computed_on_both_devices_of_one_queue(three: Serving) -> None:
    answers = ask_many(three, 24)
    assert [answer.status_code for answer in answers] == [200] * 24
    said = [answer.json() for answer in answers]
    assert [each["n"] for each in said] == list(range(24))
    workers = {worker["pid"] for worker in three.workers()}
    assert {each["worker"] for each in said} == workers
    assert {each["hand"] for each in said} - workers, "batches were prepared by hands"
    assert three.http.get("/v1/models").json()["models"][0]["device"] == "host"


def test_where_all_members_would_be_too_late_some_of_them_answer(three: Serving) -> None:
    answers = ask_many(three, 96, {"Timebound-Timeout-Ms": "600"})  # all members for all would take 0.72 s and the way
    given = [answer for answer in answers if answer.status_code == 200]
    partial = [answer for answer in given if answer.headers["timebound-quality"] == "partial"]
    assert partial
    factors = {"1/3": 1 / 3, "2/3": 1 / 2, "3/3": 1.0}
    for n, answer in enumerate(answers):
        if answer.status_code == 200:
            share = factors[answer.headers["timebound-members"]]
            assert answer.json()["n"] == pytest.approx(n * share, abs=2e-3)


def test_a_killed_worker_of_a_device_costs_no_request(three: Serving) -> None:
    victim = three.workers()[0]["pid"]
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask_many, three, 64)
        eventually(lambda: three.gauge("requests_queued") > 8, "a queue")
        os.kill(victim, signal.SIGKILL)
        answers = asked.result()
    assert [answer.status_code for answer in answers] == [200] * 64
    assert [answer.json()["n"] for answer in answers] == list(range(64))
    eventually(lambda: victim not in {worker["pid"] for worker in three.workers()}, "the end of the killed one")


HEAVY = """
from pathlib import Path
import numpy as np
import torch
import timebound as tb
from timebound.devices.base import current_device

class Heavy(tb.Model):
    example = {"n": 1}

    class Request(tb.Struct):
        n: float

    def load(self):
        self.net = tb.torch(torch.nn.ReLU, device="host")
        current_device().free = 10_000_000_000 - 6_000_000_000 * Path(__file__).with_suffix(".served").exists()

    def prepare(self, request):
        return np.array([request.n], np.float32)

    def finish(self, output, request):
        current_device().free = min(current_device().free, 4_000_000_000)
        Path(__file__).with_suffix(".served").touch()
        return {"n": float(output[0])}
"""


def test_a_reload_that_the_devices_memory_does_not_hold_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(HEAVY)
    with Serving(file, "--hands", "0") as serving:
        pid = serving.workers()[0]["pid"]
        answer = serving.operator.post("/v1/reload", timeout=30)
        assert answer.status_code == 409
        assert "host has 4.0 GB free, and the worker that serves now needed 6.0 GB" in answer.json()["detail"]
        assert serving.http.post("/predictions/heavy", json={"n": 2}).json() == {"n": 2}
        assert [worker["pid"] for worker in serving.workers()] == [pid]
