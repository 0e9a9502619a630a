"""A `finish` that yields: pieces of one batch come in turn, nobody floods the gateway, and all is joined at the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.types import Part
from timebound.workers import messages, wire
from timebound.workers.members import open_runner
from timebound.workers.pieces import Outbox
from timebound.workers.telling import ask_gateway


class Says(tb.Model):
    json = True
    closed: list[Any] = []  # noqa: RUF012 - shared on purpose

    def infer(self, batch: Any) -> Any:
        return batch

    def finish(self, output: Any, request: Any) -> Iterator[Any]:
        try:
            yield from output
        finally:
            self.closed.append(output)


def told(bodies: list[bytes], model: Says | None = None) -> tuple[list[Any], list[dict[int, list[Part]]]]:
    """The bodies of a batch's outcomes, and the messages before them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        report = open_runner(model or Says(), MonotonicClock()).run(bodies, partial(ask_gateway, theirs, 7))
        assert report is not None
        theirs.shutdown(socket.SHUT_WR)
        parts = []
        while (frame := wire.read_frame(ours)) is not None:
            assert isinstance(frame[0], messages.Pieces)
            parts.append(frame[0].parts)
    return [outcome.body if not outcome.code else outcome.code for outcome in report.outcomes], parts


def test_items_of_a_batch_take_turns_and_each_fails_alone() -> None:
    bodies, parts = told([b'["a", "b", "c"]', b"3", b'["x"]'])
    assert bodies == [b'"abc"', "model_failed", b'"x"']
    each = {place: [part for told in parts for part in told.get(place, [])] for place in (0, 1, 2)}
    assert [part.data for part in each[0]] == [b'"a"', b'"b"', b'"c"']
    assert (each[1], each[2]) == ([], [Part("text", b'"x"')])


def test_many_pieces_go_in_few_messages() -> None:
    (body,), parts = told([b"[" + b",".join([b"1"] * 1000) + b"]"])
    assert body == b"[" + b",".join([b"1"] * 1000) + b"]"
    assert sum(len(each) for told in parts for each in told.values()) == 1000
    assert len(parts) < 100


def test_a_piece_that_nobody_wants_ends_the_generator() -> None:
    told = threading.Event()

    def tell(parts: dict[int, list[Part]]) -> list[int]:
        told.set()
        return [0]

    with Outbox(tell) as outbox:
        outbox.put(0, Part("json", b"1"))
        told.wait(20)
    assert outbox.unwanted == {0}


def test_an_outbox_whose_gateway_is_gone_says_so_at_the_end() -> None:
    def tell(parts: dict[int, list[Part]]) -> list[int]:
        raise BrokenPipeError

    outbox = Outbox(tell).__enter__()
    for _ in range(1000):
        outbox.put(0, Part("json", b"1"))
    with pytest.raises(BrokenPipeError):
        outbox.__exit__()


def test_a_generator_that_is_returned_is_told_to_be_written_with_yield() -> None:
    class Returns(tb.Model):
        json = True

        def infer(self, batch: Any) -> Any:
            return batch

        def finish(self, output: Any, request: Any) -> Any:
            return (each for each in output)

    report = open_runner(Returns(), MonotonicClock()).run([b"[1]"])
    assert report is not None
    assert report.outcomes[0].code == "model_failed"


def test_a_reply_is_no_piece() -> None:
    class Replies(Says):
        def finish(self, output: Any, request: Any) -> Iterator[Any]:
            yield "a picture: "
            yield tb.Reply(b"not JSON", media="image/png")

    bodies, parts = told([b"1"], Replies())
    assert bodies == ["model_failed"]
    assert [part.data for each in parts for part in each[0]] == [b'"a picture: "']


def test_a_test_of_a_model_gets_the_pieces_joined() -> None:
    assert tb.testing.ask(Says, b'["a", "b"]') == "ab"
