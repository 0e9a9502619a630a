"""Inputs that vary: like is batched with like, and a size that cannot be told costs nobody an answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.live.serving import MODELS, Serving

pytestmark = pytest.mark.live


def test_a_size_of_the_models_own_is_asked_for_and_answers_are_right() -> None:
    texts = ["ab", "x" * 400] * 40
    with Serving(MODELS / "sizes.py", "--workers", "1") as serving, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: serving.http.post("/predictions/sizes", json={"text": text}), texts))
    assert [answer.json()["length"] for answer in answers] == [len(text) for text in texts]
    padded = [answer.json()["padded_to"] for answer in answers if answer.json()["length"] == 2]
    assert padded.count(2) > len(padded) // 2


def test_a_size_that_fails_does_not_fail_the_request() -> None:
    with Serving(MODELS / "sizes.py", "--workers", "1") as serving:
        assert serving.http.post("/predictions/sizes", json={"text": "raise"}).json()["length"] == 5
