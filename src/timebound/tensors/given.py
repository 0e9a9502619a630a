"""The nouns of a tensor request in any protocol: what is known of the model, what came, what is made of it."""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.tensors.datatypes import BYTES, FORMATS, SIZES
from timebound.tensors.item import Data, Wanted
from timebound.types import Tensor

BRACKET = ord("[")


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
    more: dict[str, Any] = {}
    """What the client said besides, by name, where the items are whole bodies that have no place for it."""


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


def check_size(given: Given) -> None:
    """Raise `RequestError` unless an input has as much data as its shape and datatype say."""
    if given.datatype != BYTES and given.datatype not in SIZES:
        raise wrong(given.name, f"has datatype {given.datatype!r}; known are {', '.join(FORMATS)} and {BYTES}")
    if given.is_text:
        if given.data[0] != BRACKET:
            raise wrong(given.name, "has data that is no list")
        return
    count, size = prod(given.shape), len(given.data)
    if given.datatype == BYTES and 4 * count > size:
        raise wrong(given.name, f"has {size} bytes, too few for {count} elements with their lengths")
    if given.datatype != BYTES and size != (needed := count * SIZES[given.datatype]):
        raise wrong(given.name, f"has {size} bytes; {given.datatype}{given.shape} has {needed}")
