"""Bodies that take long to read hurt nobody else, and mean the same however they are written."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from tests.live.serving import MODELS, Serving, eventually

pytestmark = pytest.mark.live

FIELDS = b'{"value":1,' + b",".join(b'"%x":1' % place for place in range(900_000)) + b"}"
LONG = {"value": 1, "text": "x" * 300_000, "nested": {"b": [1.0, 2.5], "a": "\u00e9"}}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "waits.py", "--workers", "1", "--max-body", "20MB") as serving:
        serving.http.post("/wait", content=json.dumps(LONG))  # the first one starts the process that reads them
        yield serving
        assert "Traceback" not in serving.said


def request(body: bytes, *lines: bytes) -> bytes:
    head = b"POST /wait HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def test_a_million_fields_with_a_key_delay_nobody_else(serving: Serving) -> None:
    is_over = threading.Event()

    def send_heavy(number: int) -> None:
        with serving.wire() as wire:
            for turn in range(3):
                wire.send(request(FIELDS, b"idempotency-key: heavy-%d-%d" % (number, turn)))
                assert wire.read().status == 200
        is_over.set()

    threads = [threading.Thread(target=send_heavy, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    waits_s: list[float] = []
    while not is_over.is_set() or len(waits_s) < 20:
        began = time.monotonic()
        assert serving.http.get("/livez").status_code == 200  # which needs the event loop, and no worker
        waits_s.append(time.monotonic() - began)
    for thread in threads:
        thread.join()
    # Each of the six kept the loop for half a second and more; where other tests fill the cores, a wait is no stall.
    assert max(waits_s) < 0.3


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_retry_that_is_written_anew_gets_the_answer_that_is_kept(serving: Serving, size: int) -> None:
    body = {**LONG, "text": "x" * size}
    again = dict(reversed(body.items())) | {"value": 1, "nested": {"a": "\u00e9", "b": [1, 2.5]}}
    key = {"Idempotency-Key": f"retold-{size}"}
    first = serving.http.post("/wait", content=json.dumps(body), headers=key)
    retold = serving.http.post("/wait", content=json.dumps(again, indent=1, ensure_ascii=False).encode(), headers=key)
    assert [first.status_code, retold.status_code] == [200, 200]
    assert retold.headers["timebound-source"] == "stored"
    other = serving.http.post("/wait", content=json.dumps({**again, "nested": {}}), headers=key)
    assert other.json()["code"] == "key_reused"


def test_answers_keep_their_order_behind_a_heavy_body(serving: Serving) -> None:
    with serving.wire() as wire:
        wire.send(request(json.dumps(LONG).encode()), request(b'{"value": 2}'), request(b'{"value": "three"}'))
        answers = [wire.read() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 422]
    assert [answer.json()["value"] for answer in answers[:2]] == [1, 2]


def test_what_is_wrong_with_a_heavy_body_is_told(serving: Serving) -> None:
    answer = serving.http.post("/wait", content=json.dumps({**LONG, "value": "one"}))
    assert (answer.status_code, answer.json()["field"]) == (422, "value")


def test_a_heavy_body_is_answered_in_time_and_leaves_nothing_behind(serving: Serving) -> None:
    with serving.wire() as wire, serving.wire() as leaver:
        leaver.send(request(FIELDS, b"idempotency-key: leaves"))
        leaver.close()
        wire.send(request(FIELDS, b"idempotency-key: hurried", b"timebound-timeout-ms: 40"))
        answer = wire.read()
    assert (answer.status, answer.json().get("code")) in ((504, "deadline_missed"), (200, None))
    eventually(lambda: serving.gauge("held_bytes") == 0, "no bytes held")
