"""The contract of a backend, the place (folder, threads) backends are opened in, and the slot they are called in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    """Name, numpy dtype and shape of one input or output; None is a free dimension."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name}: {self.dtype}[{sizes}]"


@runtime_checkable
class Backend(Protocol):
    """Computes batches. `parallel` promises that calls from several threads run side by side."""

    kind: str
    parallel: bool
    inputs: Sequence[TensorSpec]
    """What it takes; empty if it does not say."""

    def __call__(self, batch: Any) -> Any: ...


class Place(msgspec.Struct, frozen=True):
    """Where a backend is opened: `folder` resolves relative paths, `threads` is one batch's share of the cores."""

    folder: Path
    threads: int = 1
    slots: int = 1
    """Batches that run at once."""
    engine: str | None = None
    """What ONNX files run on, unless they were opened for another one."""
    opened: list[Any] = []
    """The ONNX files opened here so far."""


_place: ContextVar[Place | None] = ContextVar("timebound_place", default=None)


def current_place() -> Place:
    """The place set by the worker that is loading a model, or the working directory outside of one."""
    return _place.get() or Place(Path.cwd())


_slot: ContextVar[int] = ContextVar("timebound_slot", default=0)


def current_slot() -> int:
    """Which of its worker's slots this thread computes for, from 0."""
    return _slot.get()


@contextmanager
def in_slot(number: int) -> Iterator[None]:
    """Compute for this slot inside the `with` block."""
    token = _slot.set(number)
    try:
        yield
    finally:
        _slot.reset(token)


@contextmanager
def opened_in(place: Place) -> Iterator[Place]:
    """Open backends in `place` inside the `with` block."""
    token = _place.set(place)
    try:
        yield place
    finally:
        _place.reset(token)
