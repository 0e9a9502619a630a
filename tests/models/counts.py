"""Writes down every input it computes, in the file that the environment names; waits at a gate if one is named."""

import fcntl
import os
import time
from typing import Any

import timebound as tb


class Counts(tb.Model):
    path = "/count"
    key = "id"
    key_ignore = ("retry", "gate")
    deadline = 20.0
    keep = 300.0
    example = {"value": 0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: int
        id: str | None = None
        retry: int = 0
        gate: str = ""
        takes: float = 0.0

    def infer(self, batch: Any) -> Any:
        for request in batch:
            with open(os.environ["COMPUTED"], "a") as file:
                file.write(f"{request.value}\n")
            if request.gate:
                with open(request.gate) as gate:
                    fcntl.flock(gate, fcntl.LOCK_SH)
            time.sleep(request.takes)
        return batch

    def finish(self, output: Request, request: Request) -> dict[str, Any]:
        return {"value": output.value, "by": os.getpid()}


class Contents(Counts):
    path = "/content"
    key = None  # type: ignore[assignment]
    cache = "content"
