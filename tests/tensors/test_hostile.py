"""What somebody may send to do harm by tensors: it is refused, and costs next to nothing."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from timebound.body import FirstLook
from timebound.errors import KeyReused, Refusal, RequestError
from timebound.http.surfaces.oip import OpenInference, first_error
from timebound.tensors.given import Facts
from timebound.tensors.request import Told, read
from timebound.tensors.rows import RowFacts, RowReader
from timebound.types import ModelInfo, Tensor

FACTS = Facts([Tensor("x", "FP32", [-1, 2])], ["y"], False)
ONE = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
TWO = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(FACTS, Told(None), body)
    return caught.value


def test_a_text_without_an_end_is_looked_at_once() -> None:
    began = process_time()
    refused(b'NaN"' + rb"\"" * 100_000)  # looked at again from each quote, this takes minutes
    assert process_time() - began < 2.0


def test_words_that_json_has_none_for_are_taken_beside_texts_with_escapes() -> None:
    head = (
        rb'{"id": "a \" NaN", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [NaN, -Infinity]}]}'
    )
    infer = read(FACTS, Told(None), head)
    assert (infer.id, len(infer.items)) == ('a " NaN', 1)


@pytest.mark.parametrize(
    "request_",
    [
        {"inputs": [{**ONE, "shape": [1, 2**70]}]},
        {"inputs": [{**ONE, "shape": [2**39] * 8}]},
        {"inputs": [ONE], "parameters": {"n": 2**64}},
        {"inputs": [ONE], "parameters": {"n": {"deep": [-(2**64)]}}},
        {"inputs": [ONE], "outputs": [{"name": "y", "parameters": {"classification": 2**64}}]},
    ],
)
def test_numbers_beyond_all_bounds_are_the_clients_mistake(request_: dict[str, Any]) -> None:
    assert refused(json.dumps(request_).encode()).code == "bad_input"


def test_what_every_item_carries_is_bounded_where_there_are_several() -> None:
    long = {"parameters": {"text": "x" * 5_000}}
    assert "each of several items" in refused(json.dumps({"inputs": [TWO], **long}).encode()).detail
    assert len(read(FACTS, Told(None), json.dumps({"inputs": [ONE], **long}).encode()).items) == 1


@pytest.mark.parametrize(
    "body", [b'{"instances": [' + b"1," * 300_000 + b"1]}", b'{"inputs": [' + b"1," * 300 + b"1]}"]
)
def test_too_many_rows_are_counted_before_they_are_made(body: bytes) -> None:
    reader = RowReader(RowFacts({"type": "object"}, "x"))
    with pytest.raises(RequestError, match="send 1 to 256"):
        reader.read(Told(None), body)


def test_a_padded_head_does_not_keep_many_elements_here() -> None:
    inputs = [Tensor("t", "BYTES", [-1, -1])]
    surface = OpenInference(ModelInfo(name="m", inputs=inputs))
    elements = bytes(4 * 100_000)
    part = {"name": "t", "datatype": "BYTES", "shape": [2, 50_000], "parameters": {"binary_data_size": len(elements)}}
    head = json.dumps({"inputs": [part]}).encode() + b" " * 5_000
    fields = {b"inference-header-content-length": b"%d" % len(head)}
    assert surface.elsewhere(fields, head + elements, 10_000_000) is not None


@pytest.mark.parametrize("error", [Refusal("too much", code="queue_full", retry_after_s=2.0), KeyReused()])
def test_the_error_of_one_item_of_several_keeps_its_code_and_says_which(error: RequestError) -> None:
    told = first_error([error, error])
    assert told is not None
    assert (told.code, told.detail) == (error.code, f"item 0: {error.detail}")
    assert getattr(told, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_a_size_far_below_zero_is_a_size_of_one() -> None:
    look = FirstLook(ModelInfo(name="m", request_schema={"type": "object"}, size_field="n"))
    assert look.check(b'{"n": -1' + b"0" * 400 + b"}")[1] == 1.0
