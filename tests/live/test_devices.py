"""A server whose models are on a device: here on the stand-in that behaves as a GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving, eventually

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
