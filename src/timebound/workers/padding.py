"""Batches of arrays that vary in length, padded with a mask: what a class asks for by `pad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timebound.backends.base import TensorSpec
from timebound.model import MASK
from timebound.text import pad

_MASKS = (MASK, "attention_mask")
MOST_BYTES = 64 << 20
"""Of one padded array with several items. One long item among many short ones is computed apart from them."""


class Padding:
    """Makes batches of one model: a dict of its padded fields, their mask, and what else an item has."""

    def __init__(self, fields: Sequence[str], inputs: Sequence[TensorSpec] = ()) -> None:
        """`inputs` are those of a network that gets the batch as it is: what it declares is what it gets."""
        self.fields = fields
        self._kinds = {spec.name: np.dtype(spec.dtype) for spec in inputs if spec.dtype}
        named = [name for name in _MASKS if name in self._kinds]
        self._mask = named[0] if named else None if self._kinds else MASK
        """What the mask is called; None for a network that takes none."""
        self._like: dict[str, Any] = {}
        """By field, an empty array of the kind that was seen: an empty list does not say what it is a list of."""

    def stack(self, items: Sequence[Any]) -> dict[str, Any]:
        """A batch; raises `ValueError` for an item that has no such field, or a batch that would be too large."""
        columns = [self.columns(item) for item in items]
        batch: dict[str, Any] = {}
        for name in self.fields:
            rows, mask = pad(self._rows(name, columns))
            batch[name] = self._cast(name, rows)
            if self._mask is not None and self._mask not in batch:
                batch[self._mask] = self._cast(self._mask, mask)
        for name in columns[0].keys() - batch.keys() - {*_MASKS}:
            batch[name] = _together([each[name] for each in columns])
        return batch

    def _cast(self, name: str, array: Any) -> Any:
        """As the network declares it, if that loses nothing but digits."""
        kind = self._kinds.get(name, array.dtype)
        return array.astype(kind, copy=False) if np.can_cast(array.dtype, kind, "same_kind") else array

    def columns(self, item: Any) -> Mapping[str, Any]:
        """An item's values by their names; an array or a list is the field itself."""
        if isinstance(item, list | tuple | np.ndarray):
            found: Mapping[str, Any] = dict.fromkeys(self.fields[:1], item)
        elif isinstance(item, Mapping):
            found = item
        else:
            found = {name: getattr(item, name) for name in self.fields if hasattr(item, name)}
        missing = next((name for name in self.fields if name not in found), None)
        if missing is not None:
            raise ValueError(f"pad names {missing!r}, and what `infer` is to get of an item has {', '.join(found)}")
        return found

    def _rows(self, name: str, columns: Sequence[Mapping[str, Any]]) -> list[Any]:
        rows = [np.asarray(each[name]) for each in columns]
        flat = next((row for row in rows if not row.ndim), None)
        if flat is not None:
            raise ValueError(f"pad names {name!r}, which is {flat!r} here; give an array or a list")
        full = next((row for row in rows if len(row)), None)
        if full is not None:
            self._like[name] = full[:0]
        rows = [row if len(row) else self._like.get(name, row) for row in rows]
        if len(rows) > 1 and len(rows) * max(row.nbytes for row in rows) > MOST_BYTES:
            raise ValueError(f"{len(rows)} items padded to the longest {name!r} would be over {MOST_BYTES >> 20} MiB")
        return rows


def _together(values: Sequence[Any]) -> Any:
    """Arrays of one shape as one array, anything else as a list."""
    first = values[0]
    if isinstance(first, np.ndarray | np.generic) and all(np.shape(value) == np.shape(first) for value in values):
        return np.stack(values)
    return list(values)
