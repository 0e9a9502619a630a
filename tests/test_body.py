"""Errors about JSON bodies name the field and the cause."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.body import read_json
from timebound.errors import RequestError


class Point(msgspec.Struct):
    x: float


class Picture(msgspec.Struct):
    image: str
    points: list[Point] = []
    sizes: dict[int, int] = {}
    mode: Literal["fast", "good"] = "fast"


decode = msgspec.json.Decoder(Picture).decode


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_json(decode, body)
    return caught.value


def test_a_fitting_body_is_decoded() -> None:
    assert read_json(decode, b'{"image": "x"}') == Picture("x")


def test_a_view_on_a_larger_buffer_is_decoded() -> None:
    assert read_json(decode, memoryview(b'..{"image": "x"}..')[2:-2]) == Picture("x")


def test_raw_bodies_come_out_as_bytes() -> None:
    assert read_json(bytes, memoryview(b"\xff\x00")) == b"\xff\x00"


def test_a_wrong_type_names_its_field() -> None:
    error = refused(b'{"image": 7}')
    assert (error.code, error.field, error.detail) == ("bad_input", "image", "Expected 'str', got 'int'")


def test_a_missing_field_is_the_field_at_fault() -> None:
    error = refused(b"{}")
    assert (error.code, error.field) == ("bad_input", "image")
    assert "missing required field 'image'" in error.detail


def test_a_field_inside_a_list_is_named_with_its_path() -> None:
    assert refused(b'{"image": "x", "points": [{"x": 1}, {"x": "far"}]}').field == "points[1].x"
    assert refused(b'{"image": "x", "points": [{}]}').field == "points[0].x"


def test_a_wrong_key_of_a_mapping_names_the_mapping() -> None:
    assert refused(b'{"image": "x", "sizes": {"wide": 1}}').field == "sizes"


def test_a_body_of_the_wrong_kind_has_no_field() -> None:
    error = refused(b"[]")
    assert (error.code, error.field) == ("bad_input", None)


@pytest.mark.parametrize("value", ["slow", "missing required field", "a - at `$.image`", "`"])
def test_a_value_that_looks_like_an_error_text_does_not_confuse_the_answer(value: str) -> None:
    error = refused(msgspec.json.encode({"image": "x", "mode": value}))
    assert (error.code, error.field) == ("bad_input", "mode")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"image": "x"', b"not json", b'{"image": "\xff"}', b"[" * 100_000, b'{"image": "x"} trailing'],
    ids=["empty", "open", "cut", "text", "not utf-8", "deep", "trailing"],
)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    error = read_error(body)
    assert error.code == "malformed_json"
    assert error.detail.startswith("the body is not valid JSON: ")
    assert error.field is None


def read_error(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_json(msgspec.json.Decoder(Any).decode, body)
    return caught.value


@given(st.binary())
def test_no_body_raises_anything_but_a_request_error(body: bytes) -> None:
    code = "fine"
    try:
        read_json(decode, body)
    except RequestError as error:
        code = error.code
    assert code in {"fine", "malformed_json", "bad_input"}
