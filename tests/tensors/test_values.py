"""One tensor as JSON and as binary data: the same values, the same fingerprint, and the way from each to the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.tensors.datatypes import BYTES, DTYPES
from timebound.tensors.given import Facts
from timebound.tensors.item import Part
from timebound.tensors.pieces import at_once
from timebound.tensors.request import Told, read
from timebound.tensors.values import as_binary, in_form, joined
from timebound.types import Tensor

SHAPE = [2, 3]
NUMBERS: dict[str, list[Any]] = {name: [0, 1, 2, 3, 4, 5] for name in DTYPES if name != "BOOL"} | {
    "BOOL": [True, False, False, True, True, False],
    "FP32": [0.1, -2.5, 1e30, 0.0, 3.0, -0.125],
    "FP64": [0.1, -2.5, 1e300, 0.0, 3.0, -0.125],
    "FP16": [0.1, -2.5, 100.0, 0.0, 3.0, -0.125],
    "INT64": [-(2**63), 2**63 - 1, 0, 1, 2, 3],
    "UINT64": [2**64 - 1, 0, 1, 2, 3, 4],
}


def in_binary(datatype: str, values: list[Any]) -> bytes:
    if datatype == BYTES:
        return joined([value.encode() for value in values])
    return np.array(values, DTYPES[datatype]).tobytes()


def print_of(datatype: str, shape: list[int], data: Any, **more: Any) -> list[bytes]:
    """The fingerprints of a request's items; its data are a list, or bytes that follow the JSON."""
    facts = Facts([Tensor("x", datatype, [-1, -1, -1])], ["y"], False)
    told: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": [*shape]}
    if isinstance(data, bytes):
        told["parameters"] = {"binary_data_size": len(data)}
        text = json.dumps({"inputs": [told], **more}).encode()
        return [item.fingerprint for item in read(facts, Told(len(text), needs_print=True), text + data).items]
    text = json.dumps({"inputs": [{**told, "data": data}], **more}).encode()
    return [item.fingerprint for item in read(facts, Told(needs_print=True), text).items]


@pytest.mark.parametrize("datatype", [*NUMBERS, BYTES])
@pytest.mark.parametrize("count", [1, 2])
def test_a_tensor_has_one_fingerprint_as_json_flat_or_nested_and_in_binary(datatype: str, count: int) -> None:
    values: list[Any] = NUMBERS.get(datatype, ["a", "", "\u00e4", "b,[c]", '"', "x" * 300])
    shape = [count, *SHAPE] if count == 1 else SHAPE
    nested = np.array(values, dtype=object).reshape(shape).tolist()
    flat = print_of(datatype, shape, values)
    assert len(set(flat)) == count
    assert print_of(datatype, shape, nested) == flat
    assert print_of(datatype, shape, in_binary(datatype, values)) == flat
    other = [*values[:-1], values[0]]
    assert print_of(datatype, shape, other) != flat
    assert print_of(datatype, shape, in_binary(datatype, other)) != flat


def test_brain_floats_have_it_too_and_numbers_that_are_none_do_not() -> None:
    halves = (np.array([1.0, -2.5], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    assert print_of("BF16", [1, 2], [1.0, -2.5]) == print_of("BF16", [1, 2], halves)
    assert as_binary("BF16", [1], b"[0.1]") is None


def test_numbers_that_json_has_none_for_have_it_too() -> None:
    binary = np.array([np.nan, np.inf, -np.inf], "<f4").tobytes()
    assert print_of("FP32", [1, 3], [None, "Infinity", "-Infinity"]) == print_of("FP32", [1, 3], binary)


def test_how_the_answer_is_to_be_written_is_no_part_of_a_request_and_which_one_is() -> None:
    plain = print_of("FP32", [1, 1], [1.0])
    binary: dict[str, Any] = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    assert print_of("FP32", [1, 1], [1.0], parameters={"binary_data_output": True}) == plain
    assert print_of("FP32", [1, 1], [1.0], **binary) == plain
    classes = [{"name": "y", "parameters": {"classification": 3}}]
    assert print_of("FP32", [1, 1], [1.0], outputs=classes) != plain


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), st.lists))
def test_whatever_is_sent_as_data_is_a_tensor_or_none(data: Any) -> None:
    text = json.dumps([data]).encode()
    for datatype in [*DTYPES, "BF16", BYTES]:
        binary = as_binary(datatype, [1], text)
        assert binary is None or isinstance(binary, bytes)


@pytest.mark.parametrize("datatype", [*NUMBERS, BYTES])
@pytest.mark.parametrize("times", [1, 10_000])
def test_an_output_goes_from_one_form_to_the_other_and_back(datatype: str, times: int) -> None:
    values: list[Any] = NUMBERS.get(datatype, ["a", "", "\u00e4", "b,[c]", '"', "x"]) * times
    if datatype in ("FP16", "FP32"):
        values = np.array(values, DTYPES[datatype]).tolist()
    shape, binary = [len(values)], in_binary(datatype, values)
    part, text = at_once(in_form(Part("y", datatype, shape, len(binary)), binary, is_binary=False))
    assert (part.is_text, part.size, json.loads(bytes(text))) == (True, len(text), values)
    back, data = at_once(in_form(part, text, is_binary=True))
    is_long_text = datatype == BYTES and times > 1
    assert (back.is_text, data) == ((True, text) if is_long_text else (False, binary))


def test_to_write_an_output_anew_takes_many_small_steps() -> None:
    binary = np.random.default_rng(7).random(200_000).tobytes()
    part = Part("y", "FP64", [200_000], len(binary))
    assert len(list(in_form(part, binary, is_binary=False))) > 90
    part, text = at_once(in_form(part, binary, is_binary=False))
    assert len(list(in_form(part, text, is_binary=True))) > 90


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    binary = joined([b"\xff\x00"])
    part = Part("y", BYTES, [1], len(binary))
    assert at_once(in_form(part, binary, is_binary=False)) == (part, binary)
