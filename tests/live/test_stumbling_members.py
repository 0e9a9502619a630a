"""What the members of an ensemble have said is not lost when a later one fails or hangs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.serving import MODELS, Serving

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def stumbling() -> Iterator[Serving]:
    with Serving(MODELS / "stumbles.py", "--workers", "1") as serving:
        yield serving


def test_what_finish_cannot_do_with_the_first_members_output_waits_for_the_second(stumbling: Serving) -> None:
    answer = stumbling.http.post("/predictions/stumbles", json={"n": 15})
    assert (answer.status_code, answer.json()) == (200, [0.5])
    assert answer.headers["timebound-members"] == "2/2"
    refused = stumbling.http.post("/predictions/stumbles", json={"n": 16})
    assert (refused.status_code, refused.json()["detail"]) == (422, "sixteen")


@pytest.mark.parametrize(("n", "what"), [(13, "fails"), (14, "hangs")])
def test_the_first_members_answer_counts_when_the_second(stumbling: Serving, n: int, what: str) -> None:
    answer = stumbling.http.post("/predictions/stumbles", json={"n": n})
    assert (answer.status_code, answer.json()) == (200, [1.0]), what
    assert answer.headers["timebound-quality"] == "partial"
    assert answer.headers["timebound-members"] == "1/2"
    assert answer.elapsed.total_seconds() < 1.0  # far from the three seconds of the one that hangs


def test_a_failed_member_is_counted(stumbling: Serving) -> None:
    stumbling.http.post("/predictions/stumbles", json={"n": 13})
    assert 'reason="member_failed"' in stumbling.http.get("/metrics").text


def test_a_misspelt_option_is_told_once_at_the_start(stumbling: Serving) -> None:
    line = stumbling.wait_for_line("class Stumbles: dedline")
    assert line["message"].endswith("did you mean deadline?")
    assert len(stumbling.lines("class Stumbles: dedline")) == 1
