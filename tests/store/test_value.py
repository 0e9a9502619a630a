"""A result as bytes: it comes back as it was, and what cannot be read is said to be so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.gateways import stored

from timebound.store.base import Stored
from timebound.store.value import FINGERPRINT_BYTES, UnknownLayout, Unreadable, decode, encode
from timebound.types import Outcome, Quality, Result, Source

RESULTS = st.builds(
    Stored,
    st.binary(min_size=FINGERPRINT_BYTES, max_size=FINGERPRINT_BYTES),
    st.builds(
        Result,
        st.builds(
            Outcome,
            st.binary(max_size=500),
            st.just(""),
            st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
        ),
        st.sampled_from([Quality.FULL, Quality.PARTIAL]),
        st.just(Source.STORED),
        st.integers(0, 100),
        st.integers(1, 100),
        st.integers(0, 10_000),
    ),
    st.floats(0, 4e9),
)


@given(RESULTS)
def test_a_result_comes_back_as_it_was(result: Stored) -> None:
    assert decode(encode(result)) == result


def test_the_layout_is_the_one_that_other_servers_read() -> None:
    """Servers of several versions share a Redis: these bytes may not change without a new version number."""
    written = bytes.fromhex(
        "0166" + b"fingerprint-of-1".hex() + "86a56d65646961b06170706c69636174696f6e2f6a736f6ea76d656d6265727303"
        "aa6f665f6d656d6265727303aa62617463685f73697a6504a26174cb41d954fc40200000a4626f6479c40137"
    )
    assert decode(written) == stored(b"7")
    assert encode(stored(b"7")) == written


def test_the_quality_is_the_second_byte_for_the_script_that_compares_it() -> None:
    assert encode(stored())[1:2] == b"f"
    assert encode(stored(is_full=False))[1:2] == b"p"


@given(st.integers(2, 31))
def test_a_later_version_is_unknown_and_no_garbage(version: int) -> None:
    with pytest.raises(UnknownLayout) as told:
        decode(bytes([version]) + encode(stored())[1:])
    assert not isinstance(told.value, Unreadable)


@given(st.integers(32, 255) | st.just(0))
def test_what_no_version_begins_with_is_garbage(byte: int) -> None:
    with pytest.raises(Unreadable):
        decode(bytes([byte]) + encode(stored())[1:])


def rest(**changed: Any) -> bytes:
    """A value with something odd in it."""
    fields = {"media": "a/b", "members": 1, "of_members": 1, "batch_size": 1, "at": 1.0, "body": b"7", **changed}
    return encode(stored())[:18] + msgspec.msgpack.encode(fields)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


GARBAGE = {
    "not UTF-8": rest().replace(b"a/b", b"\xff\xfe/"),
    "not UTF-8 in a name": rest().replace(b"members", b"\xffembers"),
    "nested without end": rest(more=nested(100)).replace(b"\x91" * 100, b"\x91" * 100_000),
    "a head in the media type": rest(media="a/b\r\nset-cookie: a=b"),
    "a head in the version": rest(version="1\r\n\r\n"),
    "no number": rest(at=float("nan")),
    "a day that never comes": rest(at=1e300),
    "of another type": rest(body=7),
    "a list": encode(stored())[:18] + b"\x93\x01\x02\x03",
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_nobody_wrote_so_is_garbage(value: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(value)


def test_another_quality_is_unknown() -> None:
    with pytest.raises(UnknownLayout):
        decode(b"\x01x" + encode(stored())[2:])


def test_a_value_cut_anywhere_is_unknown() -> None:
    whole = encode(stored(b"some body"))
    for length in range(len(whole)):
        with pytest.raises(UnknownLayout):
            decode(whole[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_result_or_unknown(noise: bytes) -> None:
    for value in (noise, encode(stored())[:18] + noise):
        try:
            decode(value)
        except UnknownLayout:
            continue


def test_a_later_server_may_add_fields() -> None:
    written = encode(stored(b"7"))
    more = written[:18] + bytes([written[18] + 1]) + written[19:] + b"\xa3new\x01"
    assert decode(more) == stored(b"7")
