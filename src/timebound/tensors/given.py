"""The nouns of a tensor request in any protocol: what is known of the model, what came, what is made of it."""

from __future__ import annotations

from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.tensors.item import Data, Wanted
from timebound.types import Tensor


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a model to cut its requests."""

    inputs: list[Tensor]
    outputs: list[str]
    is_raw: bool
    key: str | None = None
    size_field: str | None = None
    key_ignore: list[str] = []


class Cut(msgspec.Struct, array_like=True, gc=False):
    """One item."""

    body: bytes
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""


class Infer(msgspec.Struct, array_like=True):
    """A request, cut."""

    items: list[Cut]
    id: str = ""
    timeout_s: float | None = None
    priority: int | None = None
    wanted: list[Wanted] = []
    is_binary: bool = False


class Output(msgspec.Struct):
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] | None = None


class Asks(msgspec.Struct):
    """What a request says besides its inputs."""

    outputs: list[Output] | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None


class Given(msgspec.Struct, gc=False):
    """An input with its data, of all items."""

    name: str
    datatype: str
    shape: list[int]
    data: Data
    is_text: bool = False
    """Whether the data is a JSON list."""


def wrong(name: str, what: str) -> RequestError:
    """An input that is not as it must be."""
    return RequestError(f"input {name!r} {what}", code="bad_input", field=name)
