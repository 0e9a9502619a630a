"""Waits at gates: in `infer` at the one a request names, in `load` at the one the environment names."""

import fcntl
import os
from typing import Any

import timebound as tb


def pass_through(gate: str) -> None:
    """Wait until nobody holds the gate shut."""
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


class Waits(tb.Model):
    path = "/wait"
    deadline = 50.0
    methods = ("GET", "POST") if "TAKES_QUERIES" in os.environ else ("POST",)
    example = {"value": 0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: int
        gate: str = ""
        pad: str = ""

    def load(self) -> None:
        if "LOAD_GATE" in os.environ:
            pass_through(os.environ["LOAD_GATE"])

    def infer(self, batch: Any) -> Any:
        for request in batch:
            if request.gate:
                pass_through(request.gate)
        return batch

    def finish(self, output: Request, request: Request) -> dict[str, Any]:
        return {"value": output.value}
