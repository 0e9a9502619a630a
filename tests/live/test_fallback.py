"""Something rather than nothing: what a client gets when the model has no time for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def careful() -> Iterator[Serving]:
    with Serving(MODELS / "falls_back.py", "--workers", "1") as serving:
        yield serving


def test_a_request_the_model_has_no_time_for_gets_its_fallback_before_the_deadline(
    careful: Serving, gate: Gate
) -> None:
    answer = careful.http.post("/careful", json={"id": "a", "gate": str(gate.path)})
    assert (answer.status_code, answer.json()["by"]) == (200, "fallback")
    assert answer.headers["timebound-quality"] == "fallback"
    assert answer.headers["timebound-members"] == "0/1"
    assert answer.elapsed.total_seconds() < 0.5


@pytest.mark.parametrize("mood", ["raises", "slow"])
def test_a_fallback_that_misbehaves_is_a_504_in_time_and_hurts_nobody_else(
    careful: Serving, gate: Gate, mood: str
) -> None:
    with ThreadPoolExecutor(2) as pool:
        bad = pool.submit(careful.http.post, "/careful", json={"id": mood, "gate": str(gate.path), "mood": mood})
        good = pool.submit(careful.http.post, "/careful", json={"id": f"beside {mood}", "gate": str(gate.path)})
        assert (bad.result().status_code, bad.result().json()["code"]) == (504, "deadline_missed")
        assert bad.result().elapsed.total_seconds() < 0.6
        assert good.result().json()["by"] == "fallback"


def test_fallbacks_go_on_while_the_worker_is_dead(careful: Serving, gate: Gate) -> None:
    numbers = count()

    def is_by_model() -> bool:
        return bool(careful.http.post("/careful", json={"id": f"one more {next(numbers)}"}).json()["by"] == "model")

    eventually(is_by_model, "the model, whatever other tests did to its worker")
    (worker,) = [w for w in careful.workers() if not w["is_understudy"]]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        # A worker that replaces the stopped one in time would answer by the model: it is held at the gate.
        answer = careful.http.post("/careful", json={"id": "while it is dead", "gate": str(gate.path)})
        assert answer.json().get("by") == "fallback", answer.text
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    eventually(is_by_model, "the model again")


def test_a_dead_understudy_is_replaced(careful: Serving, gate: Gate) -> None:
    def understudy() -> int:
        found = [w["pid"] for w in careful.workers() if w["is_understudy"] and w["is_up"]]
        return int(found[0]) if found else 0

    before = understudy()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: understudy() not in (0, before), "a new understudy")
    answer = careful.http.post("/careful", json={"id": "d", "gate": str(gate.path)})
    assert answer.json().get("by") == "fallback", answer.text


def test_an_attempt_with_the_same_key_joins_the_one_in_work(careful: Serving, gate: Gate) -> None:
    long = {"timebound-timeout-ms": "20000"}
    body = {"id": "joined", "gate": str(gate.path)}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(careful.http.post, "/careful", json=body, headers=long)
        eventually(lambda: careful.is_holding(running=1), "the first attempt in the worker")
        second = pool.submit(careful.http.post, "/careful", json=body, headers=long)
        eventually(lambda: careful.gauge("requests_pending") == 2, "the second attempt waiting")
        gate.open()
        sources = [answer.result().headers["timebound-source"] for answer in (first, second)]
    assert sources == ["computed", "joined"]
