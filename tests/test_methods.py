"""Methods that the server cannot call are told when the class is read, with the line to write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import timebound as tb
from timebound.errors import SetupError
from timebound.model import check_class


def variant(**attributes: Any) -> type[tb.Model]:
    return type("Variant", (tb.Model,), {"infer": lambda self, batch: batch, **attributes})


async def waits(self: Any, batch: Any) -> Any:
    return batch


async def yields(self: Any, output: Any, request: Any) -> Any:
    yield output


@pytest.mark.parametrize(
    ("name", "method", "given", "line"),
    [
        ("infer", lambda batch: batch, "(batch)", "def infer(self, batch)"),
        ("finish", lambda self, output: output, "(self, output)", "def finish(self, output, request)"),
        ("prepare", lambda self: None, "(self)", "def prepare(self, request)"),
        ("load", lambda self, path: None, "(self, path)", "def load(self)"),
        ("fallback", lambda self, request, why: None, "(self, request, why)", "def fallback(self, request)"),
        ("size", lambda self: 1, "(self)", "def size(self, request)"),
    ],
)
def test_a_method_with_other_arguments_is_told_the_line_to_write(
    name: str, method: Callable[..., Any], given: str, line: str
) -> None:
    with pytest.raises(SetupError) as caught:
        check_class(variant(**{name: method}))
    assert str(caught.value) == f"class Variant: {name}{given} cannot be called; write `{line}`"


@pytest.mark.parametrize(("name", "method"), [("infer", waits), ("finish", yields)])
def test_an_async_step_is_told_that_nothing_awaits_it(name: str, method: Callable[..., Any]) -> None:
    with pytest.raises(SetupError, match=f"{name} is async, and nothing awaits it; write `def {name}.*async def fetch"):
        check_class(variant(**{name: method}))


def test_methods_that_can_be_called_as_the_server_does_are_taken() -> None:
    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any) -> Any:
            return method(self, *arguments, 1)

        return call

    def prepare(self: Any, request: Any, times: int) -> Any:
        return request

    class Static(tb.Model):
        size = "text"

        class Request(tb.Struct):
            text: str

        @staticmethod
        def infer(batch: Any) -> Any:
            return batch

        def finish(self, output: Any, *rest: Any) -> Any:
            return output

        def load(self, path: str = "net.onnx") -> None:
            pass

    check_class(Static)
    check_class(variant(prepare=wrapped(prepare)))


@pytest.mark.parametrize("name", ["_read", "_decode", "_reader"])
def test_a_name_that_begins_with_an_underscore_is_the_users_own(name: str) -> None:
    cls = variant(
        **{name: lambda self, path: 1 / 0},
        Request=msgspec.defstruct("Request", [("text", str)]),
        example={"text": "hi"},
        infer=lambda self, batch: [request.text for request in batch],
    )
    assert tb.testing.ask(cls, {"text": "hello"}) == "hello"
