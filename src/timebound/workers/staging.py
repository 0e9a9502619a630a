"""Memory that a worker shares with its hands: a slot's bodies lie in it, and the rows of its next batch."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, overload

import msgspec
import numpy as np

PAGE = mmap.PAGESIZE
_KINDS = "biufc"
"""Of numbers whose size does not depend on their value; texts and objects are not put in rows."""
_ALIGNED = 64


class Column(msgspec.Struct, array_like=True, frozen=True):
    """One array of an item: the field's name in a dict, its shape and numpy dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class Form(msgspec.Struct, array_like=True, frozen=True):
    """What every prepared item of a model looks like: one array, or a dict or tuple of arrays of fixed shapes."""

    kind: str
    columns: list[Column]

    @classmethod
    def of(cls, item: Any) -> Form | None:
        """The form of an item; None if it is none that fits in rows."""
        if isinstance(item, dict):
            kind, parts = "dict", list(item.items())
        elif type(item) is tuple:
            kind, parts = "tuple", [(str(place), part) for place, part in enumerate(item)]
        else:
            kind, parts = "array", [("", item)]
        columns = [_column(name, part) for name, part in parts]
        fits = bool(columns) and all(column is not None and column.bytes for column in columns)
        return cls(kind, [column for column in columns if column is not None]) if fits else None

    def bytes(self, count: int) -> int:
        """Memory for so many rows."""
        return sum(_aligned(count * column.bytes) for column in self.columns)

    def rows(self, memory: memoryview, count: int) -> list[Any]:
        """One array per column, with room for so many rows."""
        arrays, at = [], 0
        for column in self.columns:
            end = at + count * column.bytes
            arrays.append(np.frombuffer(memory[at:end], column.dtype).reshape(count, *column.shape))
            at += _aligned(count * column.bytes)
        return arrays

    def write(self, rows: list[Any], row: int, item: Any) -> bool:
        """Put an item into a row; False if it has another form."""
        if self.kind == "dict":
            if not isinstance(item, dict) or len(item) != len(rows):
                return False
            parts = [item.get(column.name) for column in self.columns]
        elif self.kind == "tuple":
            if type(item) is not tuple or len(item) != len(rows):
                return False
            parts = list(item)
        else:
            parts = [item]
        for column, part in zip(self.columns, parts, strict=True):
            if not isinstance(part, np.ndarray | np.generic) or part.shape != column.shape:
                return False
            if part.dtype.str != column.dtype:
                return False
        for array, part in zip(rows, parts, strict=True):
            array[row] = part
        return True

    def joined(self, parts: list[Any]) -> Any:
        """Columns, or one row of each, in the form."""
        if self.kind == "dict":
            return {column.name: part for column, part in zip(self.columns, parts, strict=True)}
        return tuple(parts) if self.kind == "tuple" else parts[0]


def _column(name: Any, part: Any) -> Column | None:
    if not isinstance(name, str) or not isinstance(part, np.ndarray | np.generic) or part.dtype.kind not in _KINDS:
        return None
    return Column(name, part.shape, part.dtype.str)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def stacks_with(first: Any, item: Any) -> bool:
    """Whether an item can be in one array with the first."""
    if not isinstance(item, np.ndarray | np.generic) or item.shape != first.shape:
        return False
    # Texts of different lengths differ in dtype and stack all the same.
    return bool(item.dtype == first.dtype) or item.dtype.kind == first.dtype.kind == "U"


class Rows(Sequence[Any]):
    """Prepared items that lie in rows: as a batch they are views of that memory, and nothing is copied."""

    def __init__(self, form: Form, rows: list[Any], start: int, stop: int) -> None:
        self._form = form
        self._rows = rows
        self._start = start
        self._stop = stop

    @property
    def stacked(self) -> Any:
        """The batch, as `infer` takes it."""
        return self._form.joined([array[self._start : self._stop] for array in self._rows])

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Rows: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, stop, _ = place.indices(len(self))
            return Rows(self._form, self._rows, self._start + start, self._start + max(start, stop))
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._form.joined([array[self._start + place] for array in self._rows])


class Area:
    """One slot's shared memory: rows first, then the inbox, where the slot's frames are received.

    It has no name: only who inherits its file can open it, and it is gone with the last process that has it.
    """

    def __init__(self) -> None:
        self.file = os.memfd_create("timebound-rows")
        self.rows = memoryview(b"")
        self._inbox = memoryview(b"")
        self._map: mmap.mmap | None = None
        self._received = 0

    def open(self, rows_bytes: int, inbox_bytes: int) -> None:
        """Have room for so much; memory is taken when something is written to it."""
        rows_bytes = -(-rows_bytes // PAGE) * PAGE
        os.ftruncate(self.file, rows_bytes + inbox_bytes)
        self._map = mmap.mmap(self.file, rows_bytes + inbox_bytes)
        self.rows, self._inbox = memoryview(self._map)[:rows_bytes], memoryview(self._map)[rows_bytes:]

    def receive(self, size: int) -> memoryview:
        """Room for the next frame: in the inbox, if that is large enough."""
        self._received = size if size <= len(self._inbox) else 0
        return self._inbox[:size] if self._received else memoryview(bytearray(size))

    def offset(self, bodies: Sequence[bytes | memoryview]) -> int | None:
        """Where in this memory the last frame's bodies begin, one after the other; None if they do not lie in it."""
        size = sum(map(len, bodies))
        if self._map is None or not size <= self._received:
            return None
        return len(self.rows) + self._received - size

    def close(self) -> None:
        """Give the memory back as soon as nobody looks at it."""
        self.rows = self._inbox = memoryview(b"")
        self._received = 0
        os.close(self.file)
