"""Answers to items become one response; that of one item takes a shorter way, and is the same to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.tensors.item import Head, Part, pack
from timebound.tensors.response import of_one, outputs_of, response

TEXTS = st.text(max_size=20)
DATA = st.lists(st.tuples(TEXTS, st.booleans(), st.lists(st.integers(0, 9), max_size=2), st.binary(max_size=9_000)))


@given(DATA, TEXTS, TEXTS, TEXTS)
def test_the_answer_of_one_item_is_written_as_one_of_many_is(
    each: list[tuple[str, bool, list[int], bytes]], model: str, version: str, request_id: str
) -> None:
    parts = [Part(name, "BYTES", shape, len(data), is_text) for name, is_text, shape, data in each]
    answer = pack(Head(parts), [data for _, _, _, data in each])
    assert of_one(answer, model, version, request_id) == response(model, version, request_id, outputs_of([answer]))


WHOLE = pack(Head([Part("y", "FP32", [], 4)]), [b"1234"])


@pytest.mark.parametrize(
    "answer", [b"", b"{}", WHOLE[:3], WHOLE[:9], WHOLE[:-1], WHOLE + b"x", b"\xc1\xff\xff\xff\xff"]
)
def test_an_answer_that_is_not_whole_is_told(answer: bytes) -> None:
    with pytest.raises(RequestError, match="the tensors of this item"):
        of_one(answer, "m", "1", "")
