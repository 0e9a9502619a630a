"""Answers what an example application once answered, and takes as long as the input is: for `policy/drift.py`."""

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import timebound as tb

ANSWERS = Path(__file__).resolve().parents[2] / "policy" / "drift_answers.npz"
PER_LETTER_S = 10e-6
"""So that a post of usual length takes a millisecond."""


class Recorded(tb.Model):
    """`n` says which answer; longer texts take longer, and so are refused more often where time is short."""

    name = "recorded"
    deadline = 0.15
    size = "text"
    example: ClassVar[Any] = {"n": 0, "text": "x" * 90}

    class Request(tb.Struct):
        n: int
        text: str

    def load(self) -> None:
        file = np.load(ANSWERS)
        self.sure = (file["sentiment_confidence"] / 10_000).tolist()
        self.labels = file["sentiment_label"].tolist()

    def prepare(self, request: Any) -> Any:
        return len(request.text)

    def infer(self, batch: Any) -> Any:
        time.sleep(sum(batch) * PER_LETTER_S)
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        return {"label": str(self.labels[request.n]), "confidence": self.sure[request.n]}
