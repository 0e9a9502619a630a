"""Broken requests among good ones: each gets what it deserves, in the same batches."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live

PATH = "/predictions/pictures"
REFUSED_AT_THE_DOOR = {40, 55}


def picture(tone: int) -> str:
    """A pattern whose brightest pixel has this tone; no two lines are alike, so no half of the file will do."""
    pattern = bytes(place * place * 7 % tone for place in range(255))
    file = io.BytesIO()
    Image.frombytes("L", (16, 16), pattern + bytes([tone])).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def cut_off(image: str) -> str:
    file = base64.b64decode(image)
    return base64.b64encode(file[: len(file) // 2]).decode()


def the_64_requests() -> tuple[list[dict[str, object]], set[int]]:
    """56 pictures, each of a tone of its own, and among them the places of 8 broken requests."""
    requests: list[dict[str, object]] = [{"image": picture(100 + number)} for number in range(64)]
    for number in (3, 17, 29):
        requests[number] = {"image": "*not base64*"}
    for number in (8, 22, 61):
        requests[number] = {"image": cut_off(picture(100 + number))}
    for number in REFUSED_AT_THE_DOOR:
        requests[number] = {"picture": picture(100 + number)}
    return requests, {3, 17, 29, 8, 22, 61} | REFUSED_AT_THE_DOOR


def test_8_broken_requests_among_64_disturb_none_of_the_others(gate: Gate) -> None:
    requests, broken = the_64_requests()
    with Serving(MODELS / "pictures.py", "--workers", "1") as serving:
        # Given a worker that is held up, so that what comes now is batched together
        first = serving.wire()
        first.send(post(PATH, {"image": picture(1), "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        # When 64 requests come at once
        wires = [serving.wire() for _ in requests]
        for wire, request in zip(wires, requests, strict=True):
            wire.send(post(PATH, request))
        waiting = len(requests) - len(REFUSED_AT_THE_DOOR)
        eventually(lambda: serving.is_holding(running=1, queued=waiting), "all others in the queue")
        gate.open()
        answers = [wire.read() for wire in wires]
        assert first.read().json() == {"tone": 1}
        for wire in [first, *wires]:
            wire.close()
    # Then each good one has its own answer, and each broken one a reason
    for number, answer in enumerate(answers):
        if number not in broken:
            assert (answer.status, answer.json()) == (200, {"tone": 100 + number})
            continue
        assert answer.status == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["field"] == "image"
        assert answer.json()["detail"]
    # And they did travel together
    sizes = {number: int(answer.headers.get("timebound-batch", 0)) for number, answer in enumerate(answers)}
    assert max(sizes.values()) >= 8
    assert any(sizes[number] > 1 for number in broken)


def test_an_item_that_breaks_infer_fails_alone(gate: Gate) -> None:
    with Serving(MODELS / "picky.py", "--workers", "1") as serving:
        first = serving.wire()
        first.send(post("/predictions/picky", {"value": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        wires = [serving.wire() for _ in range(16)]
        for number, wire in enumerate(wires):
            wire.send(post("/predictions/picky", {"value": -1 if number == 5 else number}))
        eventually(lambda: serving.is_holding(running=1, queued=16), "all others in the queue")
        gate.open()
        answers = [wire.read() for wire in wires]
        for wire in [first, *wires]:
            wire.close()
    assert [answer.status for answer in answers] == [500 if number == 5 else 200 for number in range(16)]
    assert answers[5].json()["code"] == "model_failed"
    assert "secret" not in answers[5].body.decode()
    assert int(answers[5].headers["timebound-batch"]) > 1
    assert [answer.json() for number, answer in enumerate(answers) if number != 5] == [n for n in range(16) if n != 5]
