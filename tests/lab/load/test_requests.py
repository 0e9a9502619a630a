from __future__ import annotations

import re

import pytest

from timebound.errors import SetupError
from timebound.lab.load.requests import Form, Payload, Requests, read_header

FORM = Form("host:1", "/predictions/m")


def taken(payload: Payload, form: Form = FORM, count: int = 1) -> list[bytes]:
    requests = Requests(form, [payload], wall_clock=lambda: 1700000000.25)
    return [requests.take().request for _ in range(count)]


def test_a_plain_payload_is_one_request_made_once() -> None:
    requests = Requests(FORM, [Payload(b'{"a": 1}')])
    first, second = requests.take(), requests.take()
    assert first is second
    assert first.request == (
        b"POST /predictions/m HTTP/1.1\r\nHost: host:1\r\nContent-Type: application/json\r\n"
        b'Content-Length: 8\r\n\r\n{"a": 1}'
    )


def test_payloads_are_taken_in_turn() -> None:
    requests = Requests(FORM, [Payload(b"one"), Payload(b"two")])
    assert [requests.take().request[-3:] for _ in range(3)] == [b"one", b"two", b"one"]


def test_places_are_filled_and_other_braces_stay() -> None:
    first, second = taken(Payload(b'{"n": {i}, "at": {now}, "x": {}}', has_places=True), count=2)
    assert first.endswith(b'{"n": 0, "at": 1700000000.250, "x": {}}')
    assert second.endswith(b'{"n": 1, "at": 1700000000.250, "x": {}}')
    for request in (first, second):
        head, _, body = request.partition(b"\r\n\r\n")
        assert b"Content-Length: %d" % len(body) in head


def test_a_uuid_is_the_same_throughout_a_request_and_new_in_the_next() -> None:
    form = Form("h", "/", headers=[("Idempotency-Key", "{uuid}")])
    requests = taken(Payload(b'{"id": "{uuid}"}', has_places=True), form, count=50)
    found = [re.findall(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", each) for each in requests]
    assert all(len(pair) == 2 and pair[0] == pair[1] for pair in found)
    assert len({pair[0] for pair in found}) == 50


def test_raw_bytes_are_left_alone() -> None:
    assert taken(Payload(b"\x89PNG {i}", "image/png"))[0].endswith(b"\x89PNG {i}")


def test_own_headers_replace_ours() -> None:
    form = Form("h", "/", headers=[("Content-Type", "text/csv"), ("HOST", "other")])
    (request,) = taken(Payload(b"1,2"), form)
    assert request.count(b"Content-Type") == 1
    assert b"HOST: other" in request
    assert b"Host: h" not in request


def test_a_get_has_no_body() -> None:
    assert taken(Payload(b""), Form("h", "/", "GET")) == [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"]


@pytest.mark.parametrize("text", ["no colon", "a b: c", "A: b\r\nC: d", ": x"])
def test_a_header_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="is no header"):
        read_header(text)


def test_a_template_without_places_is_plain() -> None:
    requests = Requests(FORM, [Payload(b'{"uuid": 1}', has_places=True)])
    assert requests.take() is requests.take()
