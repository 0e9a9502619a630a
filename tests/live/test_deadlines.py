"""Deadlines against a model that does not come back: the client is told in time, and others are served."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import Answer, post

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    with Serving(MODELS / "waits.py", "--workers", "2") as serving:
        yield serving


@pytest.fixture
def serving(shared: Serving, gate: Gate) -> Iterator[Serving]:
    """Two idle workers at the start, and nothing left behind."""
    eventually(lambda: shared.gauge("workers_up") == 2, "both workers")
    yield shared
    gate.open()
    assert shared.http.post("/wait", json={"value": 1}).json() == {"value": 1}


def ask_what_never_comes(serving: Serving, gate: Gate, *headers: str) -> Answer:
    with serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, *headers))
        return wire.read()


def assert_missed(answer: Answer) -> None:
    assert answer.status == 504
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "deadline_missed"


@pytest.mark.parametrize(
    "header",
    [
        "Timebound-Timeout-Ms: 200",
        "grpc-timeout: 200m",
        "X-Request-Timeout-Seconds: 0.2",
        "X-Envoy-Expected-Rq-Timeout-Ms: 200",
    ],
)
def test_a_request_may_bring_its_limit_in_any_of_these_headers(serving: Serving, gate: Gate, header: str) -> None:
    assert_missed(ask_what_never_comes(serving, gate, header))


def test_the_smallest_limit_wins(serving: Serving, gate: Gate) -> None:
    assert_missed(ask_what_never_comes(serving, gate, "grpc-timeout: 40S", "Timebound-Timeout-Ms: 200"))


def test_other_requests_go_on_while_one_is_stuck(serving: Serving, gate: Gate) -> None:
    with serving.wire() as stuck:
        stuck.send(post("/wait", {"value": 1, "gate": str(gate.path)}, "Timebound-Timeout-Ms: 2000"))
        eventually(lambda: serving.is_holding(running=1), "the stuck request in a worker")
        for number in range(20):
            assert serving.http.post("/wait", json={"value": number}).json() == {"value": number}
        assert_missed(stuck.read())
        for number in range(20):
            assert serving.http.post("/wait", json={"value": number}).json() == {"value": number}


def test_a_request_whose_deadline_comes_in_the_queue_is_told_so(gate: Gate) -> None:
    # A server of its own: the other one has seen workers hang by requests with a gate, and runs these one at a time.
    with Serving(MODELS / "waits.py", "--workers", "2") as serving, serving.wire() as first, serving.wire() as second:
        first.send(post("/wait", {"value": 1, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "a stuck request in a worker")
        second.send(post("/wait", {"value": 2, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=2), "a stuck request in the other")
        late = ask_what_never_comes(serving, gate, "Timebound-Timeout-Ms: 200")
        assert_missed(late)
        assert "queue" in late.json()["detail"]
        gate.open()
        assert [first.read().json(), second.read().json()] == [{"value": 1}, {"value": 2}]


def test_an_answer_that_comes_too_late_is_not_given_to_the_next_request(serving: Serving, gate: Gate) -> None:
    with serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, "Timebound-Timeout-Ms: 200"))
        assert_missed(wire.read())
        gate.open()
        for number in range(2, 10):
            wire.send(post("/wait", {"value": number}))
            assert wire.read().json() == {"value": number}


def test_a_miss_is_told_before_the_deadline_not_after(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--margin", "4") as serving:
        start = time.monotonic()
        assert_missed(ask_what_never_comes(serving, gate, "Timebound-Timeout-Ms: 5000"))
        assert time.monotonic() - start < 5


def test_a_deadline_counts_from_arrival_though_the_gateway_reads_later(serving: Serving, gate: Gate) -> None:
    with serving.wire() as wire:
        wire.send(post("/wait", {"value": 1}))
        assert wire.read().json() == {"value": 1}
        serving.signal(signal.SIGSTOP)
        start = time.monotonic()
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, "Timebound-Timeout-Ms: 4000"))
        threading.Event().wait(2.0)  # what the test is about: nobody reads meanwhile
        serving.signal(signal.SIGCONT)
        assert_missed(wire.read())
        assert time.monotonic() - start < 5  # and not after two seconds more


def test_the_operators_deadline_replaces_the_models(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--deadline", "200ms") as serving:
        assert serving.http.get("/v1/models").json()["models"][0]["deadline_s"] == 0.2
        assert_missed(ask_what_never_comes(serving, gate))


def test_a_request_may_ask_for_more_time_than_the_model_has_by_itself(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--deadline", "200ms") as serving, serving.wire() as wire:
        wire.send(post("/wait", {"value": 1, "gate": str(gate.path)}, "Timebound-Timeout-Ms: 40000"))
        assert_missed(ask_what_never_comes(serving, gate))  # came later, and its time is over
        gate.open()
        assert wire.read().json() == {"value": 1}


def test_a_request_cannot_ask_for_more_than_the_cap(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--max-deadline", "200ms") as serving:
        assert_missed(ask_what_never_comes(serving, gate, "Timebound-Timeout-Ms: 40000"))
        assert_missed(ask_what_never_comes(serving, gate))


SLOW = """
import time, timebound as tb

class Slow(tb.Model):
    deadline = 0.02
    example = {"n": 1}
    class Request(tb.Struct):
        n: int
    def infer(self, batch):
        time.sleep(0.05)
        return [{} for _ in batch]
"""


def test_a_model_that_is_slower_than_its_deadline_is_told_at_the_start(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(SLOW)
    with Serving(app) as serving:
        said = serving.said
        assert "longer than its deadline" in said
        assert "no answer will be in time; raise the deadline" in said
    app.write_text(SLOW + "    def fallback(self, request):\n        return {}\n")
    with Serving(app) as serving:
        assert "every answer will be its fallback" in serving.said
    with Serving(app, "--deadline", "1s") as serving:
        assert "longer than its deadline" not in serving.said
