"""The members of an ensemble, asked for what each says by itself: beside the answer, and only for who asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually

pytestmark = pytest.mark.live

ASK = {"Timebound-Details": "votes"}


@pytest.fixture(scope="module")
def voters() -> Iterator[Serving]:
    with Serving(MODELS / "voters.py", "--workers", "1") as serving:
        yield serving


def votes(answer: httpx.Response) -> list[Any]:
    return [(vote["member"], vote["answer"]["sum"]) for vote in json.loads(answer.headers["timebound-votes"])]


def test_each_members_own_answer_comes_beside_the_answer_and_only_if_asked_for(voters: Serving) -> None:
    asked = voters.http.post("/predictions/voters", json={"value": 10}, headers=ASK)
    plain = voters.http.post("/predictions/voters", json={"value": 10})
    assert votes(asked) == [("小", 11.0), ("middle", 12.0), ("large", 16.0)]
    assert "timebound-votes" not in plain.headers
    assert asked.content == plain.content == b'{"sum":13.0}'


def test_a_partial_answer_has_the_votes_of_the_members_that_are_in_it(voters: Serving, gate: Gate) -> None:
    body = {"value": 10, "gate": str(gate.path), "pause_s": 0.5}
    answer = voters.http.post("/predictions/voters", json=body, headers={**ASK, "Timebound-Timeout-Ms": "2000"})
    assert (answer.headers["timebound-quality"], answer.headers["timebound-members"]) == ("partial", "2/3")
    assert votes(answer) == [("小", 11.0), ("middle", 12.0)]


def test_items_of_one_batch_keep_their_votes_to_themselves(voters: Serving, gate: Gate) -> None:
    def ask(number: int) -> httpx.Response:
        headers = ASK if number % 2 else {}
        return voters.http.post("/predictions/voters", json={"value": number}, headers=headers)

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(voters.http.post, "/predictions/voters", json={"value": 0, "gate": str(gate.path)})
        eventually(lambda: voters.is_holding(running=1), "the worker busy")
        waiting = [pool.submit(ask, number) for number in range(8)]
        eventually(lambda: voters.gauge("requests_pending") == 9, "all of them waiting")
        gate.open()
        answers = [answer.result() for answer in waiting]
    assert first.result().status_code == 200
    assert max(int(answer.headers["timebound-batch"]) for answer in answers) > 1
    for number, answer in enumerate(answers):
        assert answer.json() == {"sum": number + 3.0}
        if number % 2:
            assert votes(answer) == [("小", number + 1.0), ("middle", number + 2.0), ("large", number + 6.0)]
        else:
            assert "timebound-votes" not in answer.headers


def test_asking_for_votes_does_not_make_it_another_request(voters: Serving, gate: Gate) -> None:
    body = {"value": 1, "id": "same", "gate": str(gate.path)}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(voters.http.post, "/predictions/voters", json=body, headers=ASK)
        eventually(lambda: voters.is_holding(running=1), "the first attempt in the worker")
        second = pool.submit(voters.http.post, "/predictions/voters", json=body)
        eventually(lambda: voters.gauge("requests_pending") == 2, "the second attempt waiting")
        gate.open()
        assert len(votes(first.result())) == 3
        assert second.result().headers["timebound-source"] == "joined"
        assert "timebound-votes" not in second.result().headers


def test_votes_are_not_kept_with_the_result(voters: Serving) -> None:
    body = {"value": 1, "id": "kept"}
    first = voters.http.post("/predictions/voters", json=body, headers=ASK)
    again = voters.http.post("/predictions/voters", json=body, headers=ASK)
    assert len(votes(first)) == 3
    assert again.headers["timebound-source"] == "stored"
    assert "timebound-votes" not in again.headers
    assert again.content == first.content


def test_details_nobody_knows_are_refused(voters: Serving) -> None:
    answer = voters.http.post("/predictions/voters", json={"value": 1}, headers={"Timebound-Details": "gossip"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_header")
    assert answer.json()["field"] == "timebound-details"


APART = """
import numpy as np
import timebound as tb

class Apart(tb.Model):
    keep_votes = {share}
    deadline = 10.0
    class Request(tb.Struct):
        x: float
    def load(self):
        self.net = tb.ensemble(lambda batch: np.abs(batch), lambda batch: batch)
    def prepare(self, request):
        return np.array([request.x])
    def finish(self, output, request):
        return {{"label": "up" if output[0] > 0 else "down"}}
"""


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.0, 0)])
def test_the_history_asks_for_votes_itself_for_the_part_that_the_model_says(
    tmp_path: Path, share: float, count: int
) -> None:
    (tmp_path / "app.py").write_text(APART.format(share=share))
    with Serving(tmp_path / "app.py", "--workers", "1", "--history", tmp_path / "kept") as serving:
        for x in (1.0, -1.0):
            answer = serving.http.post("/predictions/apart", json={"x": x}, headers={"X-Request-Id": f"x{x}"})
            assert (answer.status_code, "timebound-votes" in answer.headers) == (200, False)
        eventually(lambda: len(serving.operator.get("/v1/history").json()["outcomes"]) == 2, "both are written")
        found = serving.operator.get("/v1/history?disagreed=1").json()["outcomes"]
        assert [row["request"] for row in found] == ["x-1.0"] * count
