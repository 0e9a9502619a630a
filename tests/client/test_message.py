"""HTTP as bytes: replies are read however they are cut, and no header is more than one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.client.message import NotHttp, Reader, Reply, head, header
from timebound.errors import BadInput

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n" + PLAIN


@given(whole=st.sampled_from([PLAIN, CHUNKED, CONTINUED]), cuts=st.lists(st.integers(1, 120), max_size=8))
def test_a_reply_is_the_same_however_it_is_cut(whole: bytes, cuts: list[int]) -> None:
    reader, found, start = Reader(), None, 0
    for cut in [*sorted(cuts), len(whole)]:
        if part := whole[start:cut]:
            assert found is None
            found = reader.feed(part)
            start = cut
    assert isinstance(found, Reply)
    assert (found.status, found.body, reader.stays) == (200, b"hello", True)
    assert "x-early" not in found.headers


def test_a_connection_is_not_kept_if_the_server_says_so_or_more_came_than_was_asked() -> None:
    for whole in (PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), PLAIN + PLAIN):
        reader = Reader()
        reply = reader.feed(whole)
        assert reply is not None
        assert (reply.body, reader.stays) == (b"hello", False)


def test_the_end_of_the_connection_ends_a_body_of_unknown_length_only() -> None:
    reader = Reader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert reader.feed(b"lo") is None
    assert reader.end().body == b"hello"
    for cut in (0, 20, len(PLAIN) - 1):
        reader = Reader()
        assert reader.feed(PLAIN[:cut]) is None
        with pytest.raises(NotHttp, match="closed before the answer"):
            reader.end()


def test_what_is_no_http_is_said_to_be() -> None:
    with pytest.raises(NotHttp, match="no HTTP answer"):
        Reader().feed(b"SSH-2.0-OpenSSH_9.2\r\n")


@given(st.text(min_size=1))
def test_a_header_is_one_line_or_refused(value: str) -> None:
    try:
        line = header("x-any", value)
    except BadInput:
        return
    assert line.count(b"\n") == line.count(b"\r") == 1
    assert line.endswith(b"\r\n")


def test_a_head_has_its_length_only_with_a_body() -> None:
    assert head("GET", "/a", [header("host", "b")], None) == b"GET /a HTTP/1.1\r\nhost: b\r\n\r\n"
    assert head("POST", "/a", [], 3) == b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\n"
