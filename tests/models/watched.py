"""Two models to be watched: one with members and a fallback, one that takes as long as it is told."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

import timebound as tb


def member(seconds: float) -> Any:
    """A member that takes so long for a batch."""

    def infer(batch: Any) -> Any:
        time.sleep(seconds)
        return batch

    return infer


class Votes(tb.Model):
    """Two members, and a fallback; the history keeps what it is asked."""

    path = "/votes"
    deadline = 0.5
    keep_inputs = True
    redact = ("secret",)
    key = "id"
    example: ClassVar[Any] = {"x": 1.0}

    class Request(tb.Struct):
        x: float
        id: str | None = None
        secret: str = ""

    def load(self) -> None:
        self.net = tb.ensemble(member(0.004), member(0.006))

    def prepare(self, request: Any) -> Any:
        return np.array([request.x])

    def finish(self, output: Any, request: Any) -> Any:
        return {"label": "big" if output[0] > 1 else "small", "confidence": 0.75}

    def fallback(self, request: Any) -> Any:
        return {"label": "none", "confidence": 0.0}


class Takes(tb.Model):
    """Takes `s` seconds for each item, and has no fallback."""

    path = "/takes"
    deadline = 0.25
    max_batch = 4
    example: ClassVar[Any] = {"s": 0.02}

    class Request(tb.Struct):
        s: float = 0.02

    def infer(self, batch: Any) -> Any:
        time.sleep(sum(each.s for each in batch))
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        return {"s": output.s}
