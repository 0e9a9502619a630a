"""Answers that come bit by bit: from an ensemble whose members wait at gates, and from a `finish` that yields."""

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import timebound as tb


def pass_through(gate: str) -> None:
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def member(number: int) -> Any:
    def adds(batch: Any) -> Any:
        for request in batch:
            if gate := request.gates.get(str(number)):
                pass_through(gate)
        return np.array([[request.value + number] for request in batch])

    return adds


class Better(tb.Model):
    deadline = 60.0
    path = "/better"
    methods = ("GET", "POST")
    example = {"value": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: float
        gates: dict[str, str] = {}  # noqa: RUF012 - a Struct has one for each

    def load(self) -> None:
        self.net = tb.ensemble(member(1), member(2), member(3))

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        return {"mean": float(output[0])}


class Speaks(tb.Model):
    deadline = 60.0
    example = {"say": ["a"]}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        say: list[Any]
        gates: dict[str, str] = {}  # noqa: RUF012 - a Struct has one for each
        left: str = ""
        times: int = 1
        size: int = 0
        key: str = ""

    key = "key"

    def infer(self, batch: Any) -> Any:
        return batch

    def finish(self, output: Any, request: Request) -> Iterator[Any]:
        try:
            for place, word in enumerate(request.say * request.times):
                if gate := request.gates.get(str(place)):
                    pass_through(gate)
                if word == "fail":
                    raise ValueError("this word cannot be said")
                yield b"\x00\x01" if word == "bytes" else word * request.size if request.size else word
        finally:
            if request.left:
                Path(request.left).touch()
