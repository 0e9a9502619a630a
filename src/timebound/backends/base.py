"""The contract of a backend, the place (folder, threads) backends are opened in, and the slot they are called in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from timebound.errors import SetupError

T = TypeVar("T")


class TensorSpec(msgspec.Struct, frozen=True):
    """Name, numpy dtype and shape of one input or output; None is a free dimension."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, item: Sequence[int]) -> bool:
        """Whether one item, without the batch dimension, may have this shape."""
        wanted = self.shape[1:]
        return len(wanted) == len(item) and all(w in (None, g) for w, g in zip(wanted, item, strict=True))

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name}: {self.dtype}[{sizes}]"


@runtime_checkable
class Backend(Protocol):
    """Computes batches, for one ML library. Derive from it: what is said here holds for a backend that says no more."""

    kind: str
    """The library, in a word."""
    label: str = ""
    """What it is called in sentences; the name of its file, where it has one."""
    parallel: bool = False
    """A promise that calls from several threads run side by side."""
    inputs: Sequence[TensorSpec] = ()
    """What it takes; empty if it does not say."""
    outputs: Sequence[TensorSpec] = ()
    """What it gives, likewise."""
    max_batch: int | None = None
    """The most items that it takes at once; None if it sets no limit."""
    batch_sizes: Sequence[int] = ()
    """The sizes it really runs, in order: smaller batches are padded to the next one. Empty if it runs any."""
    engines: Sequence[str] = ()
    """What it could run on, where there is a choice."""
    device: str = "cpu"
    """What it computes on: "cpu", "cuda:0", "host" ...; elsewhere than on "cpu" it is captured before it serves."""

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """One output for each item of the batch, in the form that the library gives."""

    def warm_sizes(self, max_batch: int) -> Sequence[int]:
        """Batch sizes to run once before serving; none if every size is as ready as the first."""
        return ()

    def warming(self) -> AbstractContextManager[None]:
        """While the batch sizes of `warm_sizes` run: what takes long to make ready is made ready inside, or never."""
        return nullcontext()

    def member_seconds(self) -> list[list[float]]:
        """Device time of each member, in the order they run, for each of `batch_sizes`; empty if not measured."""
        return []

    def seconds_by_length(self) -> list[tuple[float, list[list[float]]]]:
        """The same for inputs of other lengths, as multiples of the example's, and as many of `batch_sizes` as run."""
        return []

    def together_seconds(self) -> list[float]:
        """Device time of all members at once, for the first of `batch_sizes`."""
        return []

    def notes(self) -> list[str]:
        """Sentences for people: what it does in another way than it should."""
        return []

    def captured(self) -> str:
        """What of it was captured on its device, in words; empty if nothing."""
        return ""

    def divide(self, slots: int) -> bool:
        """Let so many slots run apart from each other where that is faster; whether anything new must be warmed up."""
        return False


class Place(msgspec.Struct, frozen=True):
    """Where a backend is opened: `folder` resolves relative paths, `threads` is one batch's share of the cores."""

    folder: Path
    threads: int = 1
    slots: int = 1
    """Batches that run at once."""
    engine: str | None = None
    """What ONNX files run on, unless they were opened for another one."""
    device: str = ""
    """What networks run on, whatever they were opened for; empty leaves it to them."""
    mode: str = ""
    """How networks of torch compute, where they do not say: words of `types.DTYPES` and beside it, joined by `+`."""
    opened: list[Any] = []
    """The ONNX files opened here so far."""
    on_device: list[Any] = []
    """The networks opened here so far that run elsewhere than on processors."""
    app: Mapping[str, Any] = {}
    """The app's own settings."""

    def file(self, path: str | Path) -> Path:
        """A file in this place; raises `SetupError` if it is not there."""
        file = self.folder / path
        if not file.is_file():
            raise SetupError(f"model file not found: {file}; check the name, it is relative to {self.folder}")
        return file


_place: ContextVar[Place] = ContextVar("timebound_place")


def current_place() -> Place:
    """The place set by the worker that is loading a model, or the working directory outside of one."""
    return _place.get(None) or Place(Path.cwd())


_slot: ContextVar[int] = ContextVar("timebound_slot", default=0)


def current_slot() -> int:
    """Which of its worker's slots this thread computes for, from 0."""
    return _slot.get()


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Let a variable have this value inside the `with` block, in this thread."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


in_slot = partial(during, _slot)
"""Compute for this slot inside the `with` block."""
opened_in = partial(during, _place)
"""Open backends in this place inside the `with` block."""
