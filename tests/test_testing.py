"""What a user's own tests call."""

from __future__ import annotations

from pathlib import Path

import pytest

import timebound as tb
from timebound.errors import SetupError


class Half(tb.Model):
    class Request(tb.Struct):
        x: float

    def prepare(self, request: Request) -> float:
        if request.x < 0:
            raise tb.BadInput("below zero", field="x")
        return request.x

    def infer(self, batch: list[float]) -> list[float]:
        return [x / 2 for x in batch]


class Length(tb.Model):
    def infer(self, batch: list[bytes]) -> list[bytes]:
        return [b"%d" % len(body) for body in batch]


def test_a_class_is_asked_without_a_process() -> None:
    assert tb.testing.ask(Half, {"x": 3}) == 1.5
    assert tb.testing.ask(Length, b"abc") == b"3"


def test_what_the_client_would_be_told_is_raised() -> None:
    with pytest.raises(tb.BadInput, match="below zero") as told:
        tb.testing.ask(Half, {"x": -1})
    assert told.value.field == "x"
    with pytest.raises(tb.BadInput, match="missing required field"):
        tb.testing.ask(Half, {})


def test_a_batch_keeps_the_error_of_an_item_in_its_place() -> None:
    first, second, third = tb.testing.batch(Half, [{"x": 1}, {"x": -1}, {"x": 2}])
    assert (first, third) == (0.5, 1.0)
    assert isinstance(second, tb.BadInput)


def test_a_file_is_asked_too(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    assert tb.testing.ask(app, {"x": 4}) == 8
    with pytest.raises(SetupError, match="has the models twice; say which one: name='twice'"):
        tb.testing.ask(app, {"x": 4}, name="thrice")


def test_a_class_that_is_in_no_file_is_asked_all_the_same() -> None:
    space: dict[str, object] = {"tb": tb, "__name__": "notebook"}
    exec("class Cell(tb.Model):\n    def infer(self, batch):\n        return [1] * len(batch)\n", space)
    cell: type[tb.Model] = space["Cell"]  # type: ignore[assignment] # it was made by exec
    assert tb.testing.ask(cell, b"") == 1


def test_a_misspelt_method_is_told_by_the_first_question() -> None:
    class Typo(Half):
        def prepair(self, request: Half.Request) -> float:
            return 0.0

    with pytest.warns(UserWarning, match="prepair means nothing to the server; did you mean prepare"):
        assert tb.testing.ask(Typo, {"x": 3}) == 1.5
