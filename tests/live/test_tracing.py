"""Traces of a real server, at a collector that reads them; and at one that is dead."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest
from tests.live.serving import MODELS, Serving, eventually
from tests.observe.collector import Collector, facts, ms

pytestmark = pytest.mark.live

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def serving(collector: Collector) -> Iterator[Serving]:
    with Serving(MODELS / "watched.py", "--traces", collector.url, "--trace-sample", "0") as serving:
        yield serving


def test_a_callers_trace_goes_through_the_server(serving: Serving, collector: Collector) -> None:
    headers = {"traceparent": CALLER, "X-Request-Id": "called"}
    answer = serving.http.post("/votes", json={"x": 1.0}, headers=headers).raise_for_status()
    _, trace_id, span, flags = answer.headers["traceparent"].split("-")
    eventually(lambda: collector.trace_of("called"), "the trace")
    root, *parts = collector.trace_of("called")
    assert (trace_id, flags) == ("0af7651916cd43dd8448eb211c80319c", "01")
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (trace_id, span, "b7ad6b7169203331")
    assert {"queue", "finish", "way"} <= {part.name for part in parts}
    assert len([part for part in parts if ms(part) >= 4]) >= 2, "both members"
    assert sum(ms(part) for part in parts) == pytest.approx(ms(root), abs=0.01)
    assert facts(root)["timebound.quality"] == "full"


def test_who_gets_less_is_traced_unasked_and_others_are_not(serving: Serving, collector: Collector) -> None:
    plain = serving.http.post("/votes", json={"x": 1.0}, headers={"X-Request-Id": "plain"})
    hurried = {"X-Request-Id": "hurried", "Timebound-Timeout-Ms": "5"}
    assert serving.http.post("/votes", json={"x": 1.0}, headers=hurried).headers["timebound-quality"] == "fallback"
    eventually(lambda: collector.trace_of("hurried"), "the trace")
    assert facts(collector.trace_of("hurried")[0])["timebound.quality"] == "fallback"
    assert not collector.trace_of("plain")
    assert "traceparent" not in plain.headers


def test_with_a_dead_collector_nothing_is_late() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with Serving(MODELS / "watched.py", "--traces", dead, "--trace-sample", "1") as serving:

            def dropped() -> float:
                found = re.search(
                    r"^timebound_traces_dropped_total (\S+)", serving.http.get("/metrics").text, re.MULTILINE
                )
                return float(found[1]) if found else 0.0

            asked = 0
            while not dropped():
                asked += 1
                answer = serving.http.post("/votes", json={"x": 1.0})
                assert (answer.status_code, answer.headers["timebound-source"]) == (200, "computed")
            late = re.search(r'^timebound_due_total\{in_time="no".*', serving.http.get("/metrics").text, re.MULTILINE)
            assert late is None
            assert asked > 10
