"""The example that corrects a speech recogniser: it corrects, in time, and what is too long waits for nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.live.serving import Serving

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).parents[2] / "examples" / "correction"
LINES = [line.split("\t") for line in (EXAMPLE / "samples.tsv").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(EXAMPLE, "--deadline", "5") as serving:
        yield serving


def body(candidates: list[str]) -> dict[str, Any]:
    return {
        "esun_uuid": str(uuid4()),
        "esun_timestamp": 1590493849,
        "sentence_list": candidates,
        "phoneme_sequence_list": [],
        "retry": 2,
    }


def errors(text: str, truth: str) -> int:
    above = list(range(len(truth) + 1))
    for i, a in enumerate(text, 1):
        row = [i]
        for j, b in enumerate(truth, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def test_the_shipped_lines_come_back_with_fewer_errors(serving: Serving) -> None:
    bodies = [body(line[3:]) for line in LINES]
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda question: serving.http.post("/inference", json=question), bodies))
    assert {response.headers["Timebound-Quality"] for response in responses} == {"full"}
    answers = [response.json() for response in responses]
    assert [answer["esun_uuid"] for answer in answers] == [question["esun_uuid"] for question in bodies]
    before = sum(errors(line[3], line[2]) for line in LINES)
    after = sum(errors(answer["answer"], line[2]) for line, answer in zip(LINES, answers, strict=True))
    assert after < 0.9 * before, f"{after} errors after, {before} before"


def test_the_answer_has_the_fields_of_the_contest_and_no_other(serving: Serving) -> None:
    answer = serving.http.post("/inference", json=body(["今天天氣很好"])).json()
    assert set(answer) == {"esun_uuid", "server_uuid", "server_timestamp", "answer"}
    assert isinstance(answer["server_timestamp"], int)
    assert answer["answer"] == "今天天氣很好"


def test_what_is_too_long_gets_its_first_candidate_without_a_slot(serving: Serving) -> None:
    response = serving.http.post("/inference", json=body(["今天天氣很好" * 20, "今天"]))
    assert response.json()["answer"] == "今天天氣很好" * 20
    assert response.headers["Timebound-Quality"] == "fallback"
    assert response.headers["Timebound-Batch"] == "0"


def test_other_candidates_that_are_too_long_cost_no_time(serving: Serving) -> None:
    response = serving.http.post("/inference", json=body(["我" * 40] + ["你" * 80_000] * 9))
    assert response.headers["Timebound-Quality"] == "full"
    assert "你" not in response.json()["answer"]


def test_phonemes_may_be_missing_or_nonsense(serving: Serving) -> None:
    for phonemes in ([], [""], ["x y9 1"], ["ts6 j ax n1"]):
        question = {**body(["今天天氣很好"]), "phoneme_sequence_list": phonemes}
        assert serving.http.post("/inference", json=question).status_code == 200


def test_a_retry_gets_the_very_same_answer(serving: Serving) -> None:
    question = body(["病在一定程度上透露了改革路徑", "並在一定程度上透露了改革路徑", "並在一定程度上投入了改革路徑"])
    first = serving.http.post("/inference", json=question)
    again = serving.http.post("/inference", json={**question, "retry": 1, "esun_timestamp": 1590493850})
    assert first.json()["answer"] == "並在一定程度上透露了改革路徑"
    assert again.json() == first.json()
    assert again.headers["Timebound-Source"] != "computed"


@pytest.mark.parametrize("candidates", [[], ["好"] * 11, "好", [1]])
def test_a_list_that_is_none_is_refused_by_name(serving: Serving, candidates: Any) -> None:
    response = serving.http.post("/inference", content=json.dumps(body(candidates)))
    assert response.status_code == 422
    assert "sentence_list" in response.json()["field"]


def test_the_first_candidate_that_says_anything_counts_as_the_first(serving: Serving) -> None:
    long = "今天天氣很好" * 20
    for candidates, answer in ((["", "", "今天天氣很好"], "今天天氣很好"), (["", long], long), (["", ""], "")):
        response = serving.http.post("/inference", json=body(candidates))
        assert (response.status_code, response.json()["answer"]) == (200, answer)
