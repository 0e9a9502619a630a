"""Which requests are traced, and what their callers are told."""

from __future__ import annotations

import pytest

from timebound.http.around import Tracing, around
from timebound.http.cors import Cors

CALLER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def answer(tracing: Tracing, fields: dict[bytes, bytes], cors: Cors | None = None) -> bytes:
    """The head that a client gets."""
    heads: list[bytes] = []
    wrap = around(cors, tracing)
    assert wrap is not None
    respond, _ = wrap(fields, lambda status, head, body: heads.append(head))
    respond(200, b"a: b\r\n", b"")
    return heads[0]


def test_a_callers_trace_is_taken_up_and_answered() -> None:
    trace = Tracing(0.0).begin({b"traceparent": CALLER, b"tracestate": b"vendor=1"})
    assert trace is not None
    assert (trace.trace_id, trace.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert (trace.is_sampled, trace.state) == (True, "vendor=1")
    head = answer(Tracing(0.0), {b"traceparent": CALLER}).decode()
    line = head.splitlines()[1]
    assert line.startswith("traceparent: 00-0af7651916cd43dd8448eb211c80319c-")
    assert line.endswith("-01")
    assert "b7ad6b7169203331" not in line


def test_a_caller_that_does_not_trace_is_left_so() -> None:
    trace = Tracing(1.0).begin({b"traceparent": CALLER[:-1] + b"0"})
    assert trace is not None
    assert not trace.is_sampled


@pytest.mark.parametrize(
    "given",
    [
        b"", b"hello", CALLER[:-1], CALLER + b"-more", b"ff" + CALLER[2:], CALLER.upper(),
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        b"01" + CALLER[2:] + b"-" + b"x" * 10_000,
    ],
)  # fmt: skip
def test_a_header_that_is_none_begins_no_trace(given: bytes) -> None:
    assert Tracing(0.0).begin({b"traceparent": given}) is None


def test_a_later_version_of_the_header_may_have_more() -> None:
    assert Tracing(0.0).begin({b"traceparent": b"01" + CALLER[2:] + b"-more"}) is not None


def test_a_share_of_the_requests_is_chosen() -> None:
    some, chosen = Tracing(0.1), 0
    ids = set()
    for _ in range(10_000):
        trace = some.begin({})
        if trace is not None:
            chosen += 1
            ids.add((trace.trace_id, trace.span))
            assert (len(trace.trace_id), len(trace.span), trace.parent) == (32, 16, "")
    assert 800 < chosen < 1200
    assert len(ids) == chosen


def test_an_answer_without_a_trace_is_as_it_was() -> None:
    assert around(None, None) is None
    assert answer(Tracing(0.0), {}) == b"a: b\r\n"
    both = answer(Tracing(0.0), {b"traceparent": CALLER, b"origin": b"https://a.example"}, Cors(["*"]))
    assert b"traceparent: " in both
    assert b"access-control-allow-origin: *" in both
