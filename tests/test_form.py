"""Forms are read as they were sent, and what is no form is refused in words."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.errors import RequestError
from timebound.form import MOST_FIELDS, Field, is_form, read_form

BOUNDARY = b"multipart/form-data; boundary=xyz"


def sent(files: dict[str, tuple[str, bytes, str]], data: dict[str, str]) -> tuple[bytes, bytes]:
    """What an outside client sends: content type and body."""
    request = httpx.Request("POST", "http://host/", files=files, data=data)
    return request.headers["content-type"].encode(), request.read()


def test_files_and_texts_come_out_as_they_were_sent() -> None:
    media, body = sent({"data": ('a "b".png', b"\r\n--xyz\r\n\x00", "image/png")}, {"note": "grüße\r\n"})
    note, data = list(read_form(media, body))
    assert note == Field("note", "grüße\r\n".encode())
    assert (data.name, data.value, data.media) == ("data", b"\r\n--xyz\r\n\x00", "image/png")
    assert data.filename in ('a "b".png', "a %22b%22.png")


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=8))
def test_urlencoded_pairs_come_out_as_they_were_sent(pairs: dict[str, str]) -> None:
    pairs = {name: value.encode("utf-8", "replace").decode() for name, value in pairs.items()}
    fields = read_form(b"application/x-www-form-urlencoded; charset=utf-8", urlencode(pairs).encode())
    assert {field.name: field.value.decode() for field in fields} == {
        name.encode("utf-8", "replace").decode(): value for name, value in pairs.items()
    }


def test_a_preamble_an_epilogue_and_blanks_after_a_boundary_do_no_harm() -> None:
    body = b"hello\r\n--xyz \t\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--xyz--\r\nbye"
    assert list(read_form(BOUNDARY, body)) == [Field("a", b"1")]


def test_an_empty_value_and_an_empty_form_are_read() -> None:
    body = b'--xyz\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n--xyz--'
    assert list(read_form(BOUNDARY, body)) == [Field("a", b"")]
    assert list(read_form(BOUNDARY, b"--xyz--\r\n")) == []


@pytest.mark.parametrize(
    ("media", "body", "said"),
    [
        (b"multipart/form-data", b"", "boundary"),
        (b"multipart/form-data; boundary=" + b"x" * 71, b"", "boundary"),
        (BOUNDARY, b"nothing of the kind", "does not contain the boundary"),
        (BOUNDARY, b'--xyz\r\ncontent-disposition: form-data; name="a"\r\n\r\ncut', "cut off"),
        (BOUNDARY, b"--xyz\r\ncontent-type: text/plain\r\n\r\n1\r\n--xyz--", "has no name"),
        (BOUNDARY, b"--xyz\r\n" + b"x: y\r\n" * 9_999 + b"\r\n1\r\n--xyz--", "do not end within"),
        (BOUNDARY, b"--xyzzy\r\n\r\n1\r\n--xyz--", "something else"),
        (BOUNDARY, b"--xyz\r\nA: b\r\nContent-Transfer-Encoding: base64\r\n\r\nAA\r\n--xyz--", "transfer encoding"),
        (b"application/json", b"{}", "is no form"),
    ],
)
def test_what_is_no_form_is_refused_in_words(media: bytes, body: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        list(read_form(media, body))
    assert refused.value.code == "bad_input"


def test_a_form_of_too_many_fields_is_refused() -> None:
    part = b'--xyz\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n'
    with pytest.raises(RequestError, match="more than"):
        list(read_form(BOUNDARY, part * (MOST_FIELDS + 1) + b"--xyz--"))
    with pytest.raises(RequestError, match="more than"):
        list(read_form(b"application/x-www-form-urlencoded", b"a=1&" * (MOST_FIELDS + 1)))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for start in (b"", b"--xyz\r\n", b'--xyz\r\ncontent-disposition: form-data; name="a"\r\n\r\n'):
        with suppress(RequestError):
            list(read_form(BOUNDARY, start + body))


def test_forms_are_known_by_their_content_type() -> None:
    assert is_form(BOUNDARY)
    assert is_form(b"Application/X-WWW-Form-Urlencoded;charset=utf-8")
    assert not is_form(b"application/json")
