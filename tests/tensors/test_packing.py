"""Packed bodies: unpacked up to a bound, whole or not at all."""

from __future__ import annotations

import pytest

from timebound.errors import RequestError
from timebound.tensors.packing import packed, unpacked, wanted


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_packed_is_unpacked_up_to_a_bound(encoding: str) -> None:
    body = bytes(10_000)
    small = packed(body, encoding)
    assert len(small) < 100
    assert unpacked(small, encoding, 10_000) == body
    with pytest.raises(RequestError, match="over 9999 bytes"):
        unpacked(small, encoding, 9_999)
    for broken in (small[:-1], small + b"x", b"x"):
        with pytest.raises(RequestError):
            unpacked(broken, encoding, 10_000)


@pytest.mark.parametrize(
    ("header", "packing"),
    [
        (b"gzip", "gzip"),
        (b"br, deflate", "deflate"),
        (b"gzip;q=0, deflate", "deflate"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"deflate, gzip", "gzip"),
        (b"gzip;q=0.5, identity;q=0.5", "gzip"),
        (b"identity;q=1, gzip;q=0.5", None),
        (b"GZIP ; Q=1.0", "gzip"),
        (b"*", "gzip"),
        (b"gzip;q=0, *", "deflate"),
        (b"*;q=0", None),
        (b"gzip;q=2", None),
        (b"gzip;q=nan", None),
        (b"br", None),
        (b"gzip," + b"br;q=0.5," * 200, None),
        (b"identity", None),
        (b"", None),
    ],
)
def test_an_answer_is_packed_as_the_client_likes_it_best(header: bytes, packing: str | None) -> None:
    assert wanted(header) == packing
