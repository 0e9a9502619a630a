"""An answer with a media type and headers of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import timebound as tb
from timebound.store.base import Stored
from timebound.store.value import decode, encode
from timebound.types import Outcome, Result


def outcome(reply: tb.Reply) -> Outcome:
    return reply.outcome(msgspec.json.encode)


@pytest.mark.parametrize(
    ("body", "media", "said", "sent"),
    [
        (b"\x89PNG", "image/png", "image/png", b"\x89PNG"),
        (b"x", None, "application/octet-stream", b"x"),
        ("good day", None, "text/plain; charset=utf-8", b"good day"),
        ("<p>", "text/html; charset=utf-8", "text/html; charset=utf-8", b"<p>"),
        ("text", "application/json", "application/json", b'"text"'),
        ({"a": 1}, None, "application/json", b'{"a":1}'),
        ({"type": "Point"}, "application/geo+json", "application/geo+json", b'{"type":"Point"}'),
    ],
)
def test_a_body_is_sent_as_its_media_type_says(body: Any, media: str | None, said: str, sent: bytes) -> None:
    made = outcome(tb.Reply(body, media=media))
    assert (made.media, made.body) == (said, sent)


def test_headers_are_sent_one_a_line() -> None:
    made = outcome(tb.Reply(b"x", headers={"Content-Disposition": 'inline; filename="a.png"', "X-Model": "7"}))
    assert made.headers == 'content-disposition: inline; filename="a.png"\r\nx-model: 7\r\n'


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Content-Length": "3"}, "set by the server"),
        ({"content-type": "a/b"}, "give it as media"),
        ({"Timebound-Quality": "full"}, "set by the server"),
        ({"Access-Control-Allow-Origin": "*"}, "set by the server"),
        ({"x y": "1"}, "no name of a header"),
        ({"x": "1\r\nset-cookie: a=b"}, "printable ASCII"),
        ({"x": "é"}, "printable ASCII"),
        ({"x": "y" * 3000}, "at most"),
        ({f"x{at}": "y" for at in range(17)}, "at most"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(headers: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tb.Reply(b"x", headers=headers)


@pytest.mark.parametrize("media", ["png", "image/png\r\nx: y", "image/", "a/b;\n"])
def test_a_media_type_that_cannot_be_sent_is_refused(media: str) -> None:
    with pytest.raises(ValueError, match="give a media type"):
        tb.Reply(b"x", media=media)


def test_a_kept_result_keeps_its_headers() -> None:
    result = Result(Outcome(b"x", media="image/png", headers="x-a: 1\r\n"))
    assert decode(encode(Stored(b"f" * 16, result, 1.0))).result.outcome == result.outcome


def test_a_test_sees_the_bytes_of_a_reply(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import timebound as tb\n\ndef draw(size: int = 1) -> tb.Reply:\n"
        "    return tb.Reply(b'P' * size, media='image/png')\n"
    )
    assert tb.testing.ask(app, {"size": 3}) == b"PPP"
