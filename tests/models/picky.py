"""Fails its whole batch for one item it does not like."""

import fcntl
from typing import Any

import timebound as tb


class Picky(tb.Model):
    deadline = 50.0
    example = {"value": 0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: int
        gate: str = ""

    def infer(self, batch: Any) -> Any:
        for request in batch:
            if request.gate:
                with open(request.gate) as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
        if any(request.value < 0 for request in batch):
            raise RuntimeError("a secret detail")
        return [request.value for request in batch]
