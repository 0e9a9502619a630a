"""A server that is killed leaves requests behind; a retry at another one is answered within its deadline."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post
from tests.redis_server import RedisServer

pytestmark = pytest.mark.live


def test_a_retry_within_one_second_is_computed_by_the_server_that_lives(
    redis: RedisServer, tmp_path: Path, gate: Gate
) -> None:
    computed = tmp_path / "computed"
    store = ("--store", redis.url, "--store-namespace", tmp_path.name, "--store-patience", "5", "--workers", "1")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(Serving(MODELS / "counts.py", *store, environment={"COMPUTED": str(computed)}))
            for _ in range(2)
        )
        # Given a request in the model of a server that is killed with all its processes
        content = {"value": 41, "id": "orphan", "gate": str(gate.path)}
        with one.wire() as first:
            first.send(post("/count", content))
            eventually(lambda: computed.exists() and "41" in computed.read_text().split(), "it in the model")
            os.killpg(one.pid, signal.SIGKILL)
            one.process.wait()
        gate.open()
        # When it is sent again to the other server, with a second's time, far less than the lease
        asked = time.monotonic()
        with two.wire() as second:
            second.send(post("/count", content, "Timebound-Timeout-Ms: 1000"))
            answer = second.read()
        # Then that one computes it, once, in time
        assert (answer.status, answer.headers["timebound-source"]) == (200, "computed")
        assert time.monotonic() - asked < 1.0
        assert computed.read_text().split().count("41") == 2  # the dead server's, and this
        assert 'timebound_take_overs_total{model="counts"} 1.0' in two.http.get("/metrics").text


def test_who_waits_already_takes_over_too(redis: RedisServer, tmp_path: Path, gate: Gate) -> None:
    computed = tmp_path / "computed"
    store = ("--store", redis.url, "--store-namespace", tmp_path.name, "--store-patience", "5", "--workers", "1")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(Serving(MODELS / "counts.py", *store, environment={"COMPUTED": str(computed)}))
            for _ in range(2)
        )
        content = {"value": 42, "id": "shared-orphan", "gate": str(gate.path)}
        with one.wire() as first, two.wire() as second:
            first.send(post("/count", content))
            eventually(lambda: computed.exists() and "42" in computed.read_text().split(), "it in the model")
            second.send(post("/count", content))
            eventually(lambda: two.gauge("requests_pending") == 1, "the other one waiting")
            os.killpg(one.pid, signal.SIGKILL)
            one.process.wait()
            died = time.monotonic()
            gate.open()
            answer = second.read()
        assert (answer.status, answer.headers["timebound-source"]) == (200, "computed")
        assert time.monotonic() - died < 1.5  # the lease alone would take up to two seconds and more
