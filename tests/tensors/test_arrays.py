"""Between data and arrays: every datatype goes both ways, in binary and as JSON, and nothing is bent to fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.tensors.arrays import array_of, datatype_of, elements, values_of, written
from timebound.tensors.datatypes import DTYPES
from timebound.tensors.item import Part


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("datatype", [*DTYPES])
def test_every_datatype_goes_both_ways(datatype: str, is_binary: bool) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(DTYPES[datatype])
    told, value = datatype_of(array)
    part, data = written("x", told, value, is_binary=is_binary)
    assert (part.datatype, part.shape, part.is_text) == (datatype, [2, 2], not is_binary)
    np.testing.assert_array_equal(array_of(part, data), array)
    assert values_of(part, data) == array.ravel().tolist()


@pytest.mark.parametrize("is_binary", [True, False])
def test_infinities_and_nan_go_both_ways(is_binary: bool) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1.5])
    part, data = written("x", "FP64", array, is_binary=is_binary)
    np.testing.assert_array_equal(array_of(part, data), array)


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    array = array_of(Part("x", "BF16", [2], 4), b"\x80\x3f\x60\xc0")
    np.testing.assert_array_equal(array, np.array([1.0, -3.5], np.float32))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        (True, "BOOL"),
        (3, "INT64"),
        (2**70, "BYTES"),
        (0.5, "FP64"),
        ("a", "BYTES"),
        (b"\xff", "BYTES"),
        ([1, 2], "INT64"),
        ([1, 2.5], "FP64"),
        (["a", "b"], "BYTES"),
        ([[1], [2, 3]], "BYTES"),
        ({"a": np.float32(1)}, "BYTES"),
        (None, "BYTES"),
        (np.float16(1), "FP16"),
        (np.array(["a"]), "BYTES"),
    ],
)
def test_what_an_answer_holds_has_a_datatype(value: Any, datatype: str) -> None:
    told, plain = datatype_of(value)
    assert told == datatype
    for is_binary in (True, False):
        part, data = written("x", told, plain, is_binary=is_binary)
        assert len(data) == part.size


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("dtype", [">i4", ">u8", ">f2", ">f8"])
def test_an_answer_in_another_byte_order_keeps_its_values(dtype: str, is_binary: bool) -> None:
    part, data = written("x", *datatype_of(np.array([1, 2, 258], dtype)), is_binary=is_binary)
    assert array_of(part, data).tolist() == [1, 2, 258]


@pytest.mark.parametrize(
    "data", [b'["1"]', b"[1.5]", b"[null]", b"[true]", b"[300]", b"[1, 2]", b"[]", b"[[1], 2]", b"{}"]
)
def test_numbers_are_not_bent_to_fit(data: bytes) -> None:
    part = Part("x", "UINT8", [1], len(data), True)
    for read in (array_of, values_of):
        with pytest.raises(RequestError):
            read(part, data)


JSON = st.recursive(st.integers() | st.floats() | st.text() | st.none(), st.lists, max_leaves=8)


def refusal(read: Callable[[Part, bytes], Any], part: Part, data: bytes) -> str:
    try:
        read(part, data)
    except RequestError as error:
        return error.code
    return "none"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*DTYPES, "BF16", "BYTES"]), st.lists(st.integers(0, 4), max_size=3), JSON)
def test_any_list_is_read_or_refused(datatype: str, shape: list[int], value: Any) -> None:
    data = msgspec.json.encode([value])
    part = Part("x", datatype, shape, len(data), True)
    assert refusal(array_of, part, data) in ("none", "bad_input")
    if datatype != "BYTES":
        assert refusal(values_of, part, data) in ("none", "bad_input")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3), st.binary(max_size=40))
def test_any_elements_are_read_or_refused(shape: list[int], data: bytes) -> None:
    part = Part("x", "BYTES", shape, len(data))
    assert refusal(elements, part, data) in ("none", "bad_input")
    assert refusal(array_of, part, data) in ("none", "bad_input")


@pytest.mark.parametrize(
    ("value", "is_text"),
    [
        ("勇" * 50_000, True),
        ('"' * 70_000, True),
        ("\0" * 100, True),
        ("\0" * 20_000, False),
        (b"\0" * 20_000, False),
        ([b"a"] * 50_000, True),
    ],
)
def test_large_bytes_that_json_would_make_many_times_as_large_are_binary(value: Any, is_text: bool) -> None:
    part, data = written("x", "BYTES", value, is_binary=False)
    assert part.is_text is is_text
    told = [one.decode() for one in elements(part, data)]
    assert told == ([one.decode() for one in value] if isinstance(value, list) else [as_str(value)])


def as_str(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
