"""Traces of requests that are over, made from events and taken by a collector."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from tests.live.serving import eventually
from tests.observe.collector import Collector, facts, ms

from timebound.clock import ManualClock
from timebound.errors import Refusal
from timebound.events import Answered, Events, Refused
from timebound.observe import otlp
from timebound.observe.traces import Traces
from timebound.types import ModelInfo, Outcome, Quality, Question, Result, Run, Source, Timing, Trace

WALL_AHEAD = 1_700_000_000.0
TIMING = Timing(0.001, 0.005, 0.002, (0.002, 0.0025))
RUN = Run(7, "m", "slot 1.0", 2, "best_rate", 100.0, 0.012, 100.4)
CHOSEN = Trace("ab" * 16, "", "cd" * 8, is_sampled=True)
MODELS = {"m": ModelInfo(name="m", member_names=["wide", "slim"])}


class World:
    """Events on a manual clock, and who makes traces of them."""

    def __init__(self, target: Any) -> None:
        self.clock, self.events = ManualClock(100.0), Events()
        now = self.clock.now
        self.traces = Traces(self.events, target, models=MODELS, now=now, wall=lambda: now() + WALL_AHEAD)

    def answer(
        self, name: str, trace: Trace | None = None, status: int = 200, seconds: float = 0.02, **of: Any
    ) -> None:
        question = Question(name, "m", b"{}", self.clock.now() - seconds, self.clock.now() - seconds + 0.5)
        question.trace = trace
        facts = {"outcome": Outcome(b""), "queue_s": 0.004, "timing": TIMING, "run": RUN, **of}
        self.events.emit(Answered(question, Result(**facts), status, seconds))

    def refuse(self, name: str, status: int, code: str) -> None:
        error = Refusal("no", code=code)
        error.predicted_s = 0.7
        question = Question(name, "m", b"", 99.997, 100.5)
        self.events.emit(Refused("m", name, code, status, 0.003, question=question, error=error))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@contextmanager
def world(url: str, headers: str = "") -> Iterator[World]:
    made = World(otlp.Collector(url, headers, "shop"))
    made.traces.start()
    try:
        yield made
    finally:
        made.traces.stop()


def until(condition: Callable[[], Any]) -> None:
    eventually(condition, "what the collector is to have")


def test_a_chosen_request_has_a_span_for_each_part_and_they_add_up(collector: Collector) -> None:
    with world(collector.url, "x-tenant=blue,authorization=Bearer a=b") as made:
        made.answer("one", CHOSEN)
        until(lambda: collector.trace_of("one"))
    root, *parts = collector.trace_of("one")
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id) == (CHOSEN.trace_id, CHOSEN.span, b"")
    assert root.start_time_unix_nano == pytest.approx((WALL_AHEAD + 99.98) * 1e9, abs=1e6)
    assert ms(root) == pytest.approx(20, abs=0.01)
    assert [part.name for part in parts] == ["queue", "prepare", "wide", "slim", "infer", "finish", "way"]
    assert [ms(part) for part in parts[:4]] == pytest.approx([4, 1, 2, 2.5], abs=0.01)
    assert sum(ms(part) for part in parts) == pytest.approx(ms(root), abs=0.01)
    for before, after in pairwise(parts):
        assert after.start_time_unix_nano == pytest.approx(before.end_time_unix_nano, abs=1e3)
    said = facts(root)
    assert (said["timebound.quality"], said["timebound.batch"], said["timebound.slot"]) == ("full", 7, "slot 1.0")
    assert (said["timebound.predicted_ms"], said["timebound.deadline_ms"]) == (12.0, 500.0)
    assert collector.resource["service.name"] == "shop"
    assert (collector.headers["x-tenant"], collector.headers["authorization"]) == ("blue", "Bearer a=b")


def test_members_that_ran_side_by_side_have_spans_that_overlap(collector: Collector) -> None:
    with world(collector.url) as made:
        made.answer("one", CHOSEN, timing=Timing(0.001, 0.005, 0.002, (), ((0.0, 0.004), (0.001, 0.004))))
        until(lambda: collector.trace_of("one"))
    spans = {span.name: span for span in collector.trace_of("one")}
    assert [ms(spans[name]) for name in ("wide", "slim", "infer")] == pytest.approx([4, 4, 5], abs=0.01)
    assert spans["slim"].start_time_unix_nano < spans["wide"].end_time_unix_nano


def test_all_that_got_less_are_traced_though_nobody_chose_them(collector: Collector) -> None:
    with world(collector.url) as made:
        made.answer("plain")
        made.answer("stored", source=Source.STORED)
        made.answer("mistaken", status=422, outcome=Outcome(b"", "bad_input"))
        made.refuse("impatient", 429, "rate_limited")
        made.answer("fallback", quality=Quality.FALLBACK, reason="deadline")
        made.answer("partial", quality=Quality.PARTIAL, members=1, of_members=2, reason="overload")
        made.answer("late", seconds=0.6)
        made.answer("broken", status=500, outcome=Outcome(b"", "model_failed"))
        made.refuse("refused", 429, "overloaded")
        until(lambda: collector.trace_of("refused"))
    names = {facts(span)["timebound.request_id"] for span in collector.spans if not span.parent_span_id}
    assert names == {"fallback", "partial", "late", "broken", "refused"}
    partial, broken, refused = (facts(collector.trace_of(name)[0]) for name in ("partial", "broken", "refused"))
    assert (partial["timebound.members"], partial["timebound.reason"]) == ("1/2", "overload")
    assert (broken["error.type"], broken["http.response.status_code"]) == ("model_failed", 500)
    assert (refused["error.type"], refused["timebound.predicted_ms"]) == ("overloaded", 700.0)
    assert collector.trace_of("broken")[0].status.code == 2


def test_a_callers_trace_goes_on(collector: Collector) -> None:
    given = Trace("12" * 16, "34" * 8, "56" * 8, is_sampled=True, state="vendor=1")
    with world(collector.url) as made:
        made.answer("called", given)
        made.answer("uncalled", Trace("78" * 16, "34" * 8, "9a" * 8, is_sampled=False))
        until(lambda: collector.trace_of("called"))
    root = collector.trace_of("called")[0]
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state) == ("12" * 16, "34" * 8, "vendor=1")
    assert not collector.trace_of("uncalled")


def test_hundreds_of_traces_go_in_one_message(collector: Collector) -> None:
    with world(collector.url) as made:
        for number in range(300):
            made.answer(f"r{number}", CHOSEN)
        until(lambda: made.traces.sent == 300)
    assert len(collector.spans) == 300 * 8
    assert collector.messages <= 2  # the second if the thread woke in between


def test_what_a_collector_cannot_take_now_is_sent_again(collector: Collector) -> None:
    collector.answers = [503, 429]
    with world(collector.url) as made:
        made.answer("one", CHOSEN)
        until(lambda: collector.trace_of("one"))
        until(lambda: made.traces.sent == 1)
    assert made.traces.dropped == 0


def test_what_a_collector_refuses_is_counted_and_left_out(collector: Collector) -> None:
    collector.answers = [400]
    with world(collector.url) as made:
        made.answer("one", CHOSEN)
        until(lambda: made.traces.dropped == 1)
        made.answer("two", CHOSEN)
        until(lambda: collector.trace_of("two"))
    assert not collector.trace_of("one")


def test_what_a_collector_says_after_its_status_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def answer() -> bytes:
            with server.accept()[0] as taken, suppress(ConnectionResetError):
                taken.recv(65_536)
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n{")
                while taken.recv(65_536):
                    pass
            return b""

        left = pool.submit(answer)
        otlp.Collector(f"http://127.0.0.1:{server.getsockname()[1]}", "", "shop").send([], 1.0)
        assert left.result(20) == b""


def test_a_dead_collector_costs_neither_time_nor_memory() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        with world(f"http://127.0.0.1:{closed.getsockname()[1]}") as made:
            for number in range(5_000):
                made.answer(f"r{number}", CHOSEN)
            assert made.traces.dropped >= 5_000 - 2_048 - 64
    assert made.traces.sent == 0


def test_that_nobody_listens_is_said_in_plain_words() -> None:
    with pytest.raises(otlp.NotTaken, match=r"^Connection refused$"):
        otlp.Collector("http://127.0.0.1:9", "", "shop").send([], 1.0)


def test_what_is_left_when_the_server_stops_is_sent(collector: Collector) -> None:
    with world(collector.url) as made:
        made.answer("last", CHOSEN)
    assert collector.trace_of("last")
    counts = {name: read() for name, (_, read) in made.traces.counts().items()}
    assert counts == {"traces_sent": 1, "traces_dropped": 0}
