"""Three members that add their own number; a request may make the second take its time and the third wait at a gate."""

import fcntl
import time
from typing import Any

import numpy as np

import timebound as tb


def adds(amount: float) -> Any:
    return lambda batch: np.array([[request.value + amount] for request in batch])


def slow(batch: Any) -> Any:
    time.sleep(max(request.pause_s for request in batch))
    return adds(2)(batch)


def gated(batch: Any) -> Any:
    for request in batch:
        if request.gate:
            with open(request.gate) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
    return adds(6)(batch)


class Voters(tb.Model):
    deadline = 60.0  # far more than anything takes: on a slow machine too, items that wait run in one batch
    key = "id"
    example = {"value": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: float
        id: str | None = None
        gate: str = ""
        pause_s: float = 0.0

    def load(self) -> None:
        self.net = tb.ensemble(adds(1), slow, gated, names=["小", "middle", "large"])

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        return {"sum": output[0]}
