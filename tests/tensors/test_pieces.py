"""Large answers become JSON piece by piece, and the same as at once."""

from __future__ import annotations

import base64
import json
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.tensors.item import Head, Part, pack
from timebound.tensors.pieces import PIECE, Steps, as_base64, as_text, at_once
from timebound.tensors.response import outputs_of, raw_outputs


def pauses(steps: Steps[object]) -> int:
    for made in count():
        try:
            next(steps)
        except StopIteration:
            return made
    raise AssertionError


@given(st.text(max_size=20))
@example('"\\\0\n')
@example("\U0001f600勇é")
def test_a_text_is_the_same_wherever_it_is_cut(text: str) -> None:
    for shift in range(4):
        long = "x" * (PIECE - shift) + text * 3 + "y" * PIECE
        written = at_once(as_text(long.encode()))
        assert written is not None
        assert json.loads(written) == long


@pytest.mark.parametrize("body", [b"\xff", b"x" * PIECE + "勇".encode()[:2], b"x" * (PIECE - 1) + b"\xff" * PIECE])
def test_what_is_no_text_is_none(body: bytes) -> None:
    assert at_once(as_text(body)) is None


@pytest.mark.parametrize("size", [0, 1, 3 * PIECE - 1, 3 * PIECE, 3 * PIECE + 1, 10 * PIECE])
def test_base64_is_the_same_wherever_it_is_cut(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    assert json.loads(at_once(as_base64(body))) == base64.b64encode(body).decode()


def test_there_is_a_pause_after_each_piece() -> None:
    assert pauses(as_text(b"x" * 8 * PIECE)) == 7
    assert pauses(as_base64(b"x" * 9 * PIECE)) == 2
    assert pauses(raw_outputs("answer", [b"x"] * 5, is_binary=False)) == 5


def test_raw_answers_that_json_would_make_many_times_as_large_are_binary() -> None:
    ((part, _),) = at_once(raw_outputs("answer", [bytes(PIECE)], is_binary=False))
    assert not part.is_text
    ((part, _),) = at_once(raw_outputs("answer", [b'"' * PIECE, b"\0"], is_binary=False))
    assert part.is_text


def test_texts_among_what_is_none_are_made_binary_unless_that_takes_long() -> None:
    def answers(size: int) -> list[bytes]:
        text = json.dumps(["x" * size]).encode()
        binary = b"\1\0\0\0\xff"
        return [
            pack(Head([Part("y", "BYTES", [1], len(text), True)]), [text]),
            pack(Head([Part("y", "BYTES", [1], len(binary))]), [binary]),
        ]

    ((part, column),) = outputs_of(answers(3))
    assert (part.is_text, [bytes(each) for each in column]) == (False, [b"\3\0\0\0xxx", b"\1\0\0\0\xff"])
    with pytest.raises(RequestError, match="ask for it with binary_data"):
        outputs_of(answers(PIECE))
