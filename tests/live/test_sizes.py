"""Inputs that vary: like is batched with like, and a size that cannot be told costs nobody an answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving
from tests.live.test_helpful_failures import sentence_of
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


PADDED = """
import numpy as np
import timebound as tb


class Sums(tb.Model):
    {pad}
    deadline = 10.0
    example = {{"ids": [1, 2, 3]}}

    class Request(tb.Struct):
        ids: list[int]

    def prepare(self, request):
        return {{"ids": np.array(request.ids, np.float32)}}

    def infer(self, batch):
        return [{{"sum": float(sum), "length": int(length), "batch": len(batch["ids"])}}
                for sum, length in zip(batch["ids"].sum(1), batch["mask"].sum(1))]
"""


def test_batches_of_many_lengths_are_padded_for_the_model(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PADDED.format(pad='pad = "ids"'))
    rows = [list(range(count)) for count in (1, 5, 0, 300, 2) * 12]
    with Serving(tmp_path / "app.py", "--workers", "1") as serving:
        answers = serving.http.post("/predictions/sums:batch", json=[{"ids": row} for row in rows]).json()
        assert serving.http.get("/v1/models").json()["models"][0]["size_field"] == "ids"
    assert [(answer["sum"], answer["length"]) for answer in answers] == [(sum(row), len(row)) for row in rows]
    assert max(answer["batch"] for answer in answers) > 1


def test_a_model_that_cannot_batch_two_lengths_is_told_the_cure_at_start(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PADDED.format(pad='size = "ids"').replace('batch["mask"]', 'batch["ids"]'))
    told = sentence_of(tmp_path / "app.py", folder=tmp_path)
    assert "infer() failed on two requests of different length in one batch" in told
    assert 'pad = "ids"' in told
