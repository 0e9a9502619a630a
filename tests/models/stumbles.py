"""An ensemble of two whose second member fails or hangs when an item asks for it, or whose answer is too sure."""

import time
from typing import Any

import numpy as np

import timebound as tb


def _steady(batch: Any) -> Any:
    return np.ones((len(batch), 1))


def _stumbling(batch: Any) -> Any:
    if (batch == 13).any():
        raise RuntimeError("thirteen")
    if (batch == 14).any():
        time.sleep(3.0)
    return np.zeros((len(batch), 1))


class Stumbles(tb.Model):
    deadline = 0.5
    dedline = 2.0  # a slip of the pen, for the warning
    example = {"n": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        n: int

    def load(self) -> None:
        self.net = tb.ensemble(_steady, _stumbling)

    def prepare(self, request: Request) -> Any:
        return np.array([request.n])

    def finish(self, output: Any, request: Request) -> Any:
        if request.n == 15 and output == 1.0:  # what the first member says alone
            raise tb.BadInput("too sure to be true")
        if request.n == 16:
            raise tb.BadInput("sixteen")
        return output
