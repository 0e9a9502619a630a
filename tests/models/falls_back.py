"""A model that waits at a gate, with a fallback that can be told to misbehave."""

from __future__ import annotations

import fcntl
import time
from typing import Any, ClassVar

import timebound as tb


class Careful(tb.Model):
    path = "/careful"
    deadline = 0.5
    key = "id"
    example: ClassVar[Any] = {"id": "example"}

    class Request(tb.Struct):
        id: str
        gate: str = ""
        mood: str = "good"

    def infer(self, batch: Any) -> Any:
        for request in batch:
            if request.gate:
                with open(request.gate) as gate:
                    fcntl.flock(gate, fcntl.LOCK_SH)
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        return {"id": request.id, "by": "model"}

    def fallback(self, request: Any) -> Any:
        if request.mood == "raises":
            raise RuntimeError("no idea")
        if request.mood == "slow":
            time.sleep(5)
        return {"id": request.id, "by": "fallback"}
