"""A class without `Request` gets JSON parsed if its example is JSON, and bytes where it says otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.errors import SetupError
from timebound.types import Body
from timebound.workers.members import open_runner
from timebound.workers.warmup import warm_up


class Kind(tb.Model):
    def infer(self, batch: Any) -> Any:
        return [type(body).__name__ for body in batch]


def kind(**attributes: Any) -> tuple[Body, str]:
    """What the model is said to take, and what its `prepare` gets."""
    runner = open_runner(type("Kind", (Kind,), attributes)(), MonotonicClock())
    return warm_up(runner, MonotonicClock()).body, json.loads(runner.run([b"[1]"]).outcomes[0].body)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({"example": {"a": 1}}, (Body.JSON, "list")),
        ({"example": [1]}, (Body.JSON, "list")),
        ({"json": True, "example": b"[1]"}, (Body.JSON, "list")),
        ({"json": False, "example": {"a": 1}}, (Body.RAW, "bytes")),
        ({"accepts": "application/json", "example": {"a": 1}}, (Body.RAW, "bytes")),
        ({"example": b"{}"}, (Body.RAW, "bytes")),
        ({}, (Body.RAW, "bytes")),
    ],
)
def test_the_example_says_whether_bodies_arrive_parsed(attributes: dict[str, Any], wanted: tuple[Body, str]) -> None:
    assert kind(**attributes) == wanted


def test_a_class_that_wants_bytes_of_its_json_example_is_told_what_to_set() -> None:
    class Reads(tb.Model):
        example = {"a": 1}  # noqa: RUF012 - read once, never changed

        def prepare(self, request: bytes) -> Any:
            return json.loads(request)

        def infer(self, batch: Any) -> Any:
            return batch

    with pytest.raises(SetupError, match=r"arrive parsed: with `json = False` they would be bytes"):
        warm_up(open_runner(Reads(), MonotonicClock()), MonotonicClock())


def test_a_class_that_fails_for_another_reason_is_told_that_reason_alone() -> None:
    class Doubles(tb.Model):
        example = {"a": 1}  # noqa: RUF012 - read once, never changed

        def infer(self, batch: Any) -> Any:
            return [*batch, *batch]

    with pytest.raises(SetupError, match=r"return one output per item$"):
        warm_up(open_runner(Doubles(), MonotonicClock()), MonotonicClock())
