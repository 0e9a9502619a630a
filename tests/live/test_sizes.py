"""Inputs that vary: like is batched with like, and a size that cannot be told costs nobody an answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving
from tests.models.onnx_files import save_doubler

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


APART = """
import threading

import numpy as np

import timebound as tb
from timebound.backends.base import current_slot

both = threading.Barrier(2)


class Apart(tb.Model):
    max_batch = 1
    deadline = 20.0
    example = {"together": False}

    class Request(tb.Struct):
        together: bool

    def load(self):
        self.net = tb.onnx("twice.onnx")

    def infer(self, batch):
        if batch[0].together:
            both.wait(15)
        doubled = self.net(np.ones((1, 3), np.float32))
        return [{"slot": current_slot(), "sessions": len(self.net._session._sessions), "sum": float(doubled.sum())}]
"""


def test_slots_that_run_at_once_have_sessions_of_their_own_where_inputs_vary(tmp_path: Path) -> None:
    save_doubler(tmp_path / "twice.onnx", width="w")
    (tmp_path / "app.py").write_text(APART)
    options = ("--workers", "1", "--slots", "2")
    with Serving(tmp_path / "app.py", *options) as serving, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(serving.http.post, "/predictions/apart", json={"together": True}) for _ in range(2)]
        answers = [each.result().json() for each in asked]
    assert {answer["slot"] for answer in answers} == {0, 1}
    assert [(answer["sessions"], answer["sum"]) for answer in answers] == [(2, 6.0)] * 2
