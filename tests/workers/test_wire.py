"""Frames between gateway and worker: whatever goes in comes out, however the stream is cut."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timebound.errors import WireError
from timebound.types import Body, Measured, ModelInfo, Outcome, Part, Report, Timing
from timebound.workers import messages, wire

INFO = ModelInfo(
    name="digits",
    path="/inference",
    key="id",
    body=Body.JSON,
    request_schema={"type": "object", "properties": {"id": {"type": "string"}}},
    example={"id": "é"},
    combine="mean",
    members=3,
    is_parallel=True,
    warm_up_s=0.25,
)
OUTCOMES = [Outcome(b"{}"), Outcome(b"x", "bad_input")]
FRAMES: list[tuple[messages.Head, list[bytes]]] = [
    (messages.Load(messages.WorkerPlan(target="/srv/app.py", cores=2, log_json=True), 2, 1, 10), []),
    (messages.Ready([INFO, ModelInfo(name="echo", body=Body.RAW)], 2), []),
    (messages.Failed("cannot load: é", "Traceback ..."), []),
    (messages.Stop(), []),
    (messages.Compute(7, "digits", [2, 0, 3], votes=[1], quiet_s=0.5, sure=2), [b"ab", b"", b"\x00\xff\x01"]),
    (messages.Outcomes(7, Report(OUTCOMES, Timing(0.1, 0.2, 0.3), 2, 3, {1: "[]"})), []),
    (messages.Decision(7, True), []),
    (messages.Errand([messages.Call(8, "fallback", "digits", b"{}"), messages.Call(9, "size", "echo", b"x")]), []),
    (messages.ErrandDone(8, Outcome(b"{}"), 40.0), []),
    (messages.Measures([Measured("m", "Took", "ms", "value", 2, 7.5, 4.0)]), []),
    (messages.Unprepared(True), []),
    (messages.Progress("capturing 13 batch sizes, about 21 s left"), []),
    (messages.Pieces(7, {0: [Part("text", b'"a"'), Part("bytes", b"\xff")], 3: []}), []),
    (messages.Unwanted(7, [0, 3]), []),
]
BY_KIND = pytest.mark.parametrize(("head", "payloads"), FRAMES, ids=lambda part: type(part).__name__)

floats = st.floats(allow_nan=False)
heads = st.one_of(
    st.sampled_from([head for head, payloads in FRAMES if not payloads]),
    st.builds(messages.Failed, st.text(), st.text()),
)


@st.composite
def frames(draw: st.DrawFn) -> tuple[messages.Head, list[bytes]]:
    """A frame without payloads, or a batch with some."""
    if draw(st.booleans()):
        return draw(heads), []
    payloads = draw(st.lists(st.binary(max_size=40), max_size=4))
    number = draw(st.integers(0, 2**63 - 1))
    return messages.Compute(number, draw(st.text()), [len(p) for p in payloads]), payloads


def stream_of(*sent: tuple[messages.Head, list[bytes]]) -> bytes:
    return b"".join(b"".join(wire.encode(head, payloads)) for head, payloads in sent)


def read_all(*chunks: bytes) -> list[tuple[messages.Head, bytes]]:
    reader = wire.FrameReader()
    return [(head, bytes(body)) for chunk in chunks for head, body in reader.feed(chunk)]


def test_every_kind_of_frame_has_a_sample_here() -> None:
    assert [type(head) for head, _ in FRAMES] == list(messages.KINDS)


@BY_KIND
def test_a_frame_crosses_a_stream_unchanged(head: messages.Head, payloads: list[bytes]) -> None:
    assert read_all(stream_of((head, payloads))) == [(head, b"".join(payloads))]


@BY_KIND
def test_a_frame_crosses_a_socket_unchanged(head: messages.Head, payloads: list[bytes]) -> None:
    ours, theirs = wire.socket_pair()
    with ours, theirs:
        wire.write_frame(ours, head, payloads)
        received = wire.read_frame(theirs)
    assert received is not None
    assert (received[0], bytes(received[1])) == (head, b"".join(payloads))


def test_the_end_of_a_socket_is_none_even_in_the_middle_of_a_frame() -> None:
    whole = stream_of(FRAMES[4])
    for sent in (b"", whole[:5], whole[: wire.PREFIX.size], whole[:-1]):
        ours, theirs = wire.socket_pair()
        with theirs:
            with ours:
                ours.sendall(sent)
            assert wire.read_frame(theirs) is None


@given(st.lists(frames(), max_size=6), st.data())
def test_any_chunking_of_a_stream_yields_the_same_frames(
    sent: list[tuple[messages.Head, list[bytes]]], data: st.DataObject
) -> None:
    stream = stream_of(*sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read_all(*chunks) == [(head, b"".join(payloads)) for head, payloads in sent]


def test_a_stream_may_come_byte_by_byte() -> None:
    stream = stream_of(*FRAMES)
    assert len(read_all(*(stream[i : i + 1] for i in range(len(stream))))) == len(FRAMES)


def test_bodies_stay_readable_while_later_frames_arrive() -> None:
    reader = wire.FrameReader()
    stream = stream_of(FRAMES[4], (messages.Compute(8, "digits", [2, 1]), [b"{}", b"x"]))
    kept = [frame for start in range(0, len(stream), 7) for frame in reader.feed(stream[start : start + 7])]
    assert [bytes(body) for _, body in kept] == [b"ab\x00\xff\x01", b"{}x"]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n", b"\x00" * 12, b"TB\xff\x00" + b"\x00" * 8], ids=["http", "zeros", "kind"]
)
def test_garbage_is_no_frame(garbage: bytes) -> None:
    with pytest.raises(WireError, match="not a frame"):
        read_all(garbage)


@given(st.binary(min_size=wire.PREFIX.size))
def test_a_stream_of_anything_raises_nothing_but_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        read_all(data)


@given(st.integers(0, len(messages.KINDS) - 1), st.binary(max_size=60))
@example(2, b"\x92\xa1\xff\xa0")  # a text that is not UTF-8
@example(1, b"\x92\x91\x8a\xa7example" + b"\x91" * 5000)  # a value nested deeper than anybody means
def test_a_head_of_anything_raises_nothing_but_a_wire_error(kind: int, head: bytes) -> None:
    frame = struct.pack("<2sBxII", wire.MAGIC, kind, len(head), 0) + head
    with suppress(WireError):
        read_all(frame)


def test_a_head_of_another_kind_is_a_wire_error() -> None:
    head = msgspec.msgpack.encode([1, "digits"])
    with pytest.raises(WireError, match="bad Compute head"):
        read_all(struct.pack("<2sBxII", wire.MAGIC, 4, len(head), 0) + head)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_a_body_is_split_into_the_payloads_it_was_made_of(payloads: list[bytes]) -> None:
    parts = wire.split(memoryview(b"".join(payloads)), [len(payload) for payload in payloads])
    assert [bytes(part) for part in parts] == payloads


@pytest.mark.parametrize("lengths", [[], [1], [3], [2, 1], [-1, 3], [3, -1]])
def test_lengths_that_do_not_fit_the_body_are_a_wire_error(lengths: list[int]) -> None:
    with pytest.raises(WireError):
        wire.split(memoryview(b"ab"), lengths)


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    payloads: list[Any] = [bytes(1 << 20)] * 4096  # one mebibyte, named 4096 times
    with pytest.raises(WireError, match="over the limit"):
        wire.encode(messages.Compute(1, "m", []), payloads)


def test_payloads_are_not_copied() -> None:
    payload = b"large"
    assert wire.encode(messages.Compute(1, "m", [5]), [payload])[1] is payload
