"""Texts: arrays whose second axis is a length, padded with zeros to the next of a few lengths, and cut back after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from timebound.devices.ladder import length_steps, up
from timebound.devices.tree import alike, leaves

_MOST_PLACES = 32_768
"""Of a batch times its length: beyond it a GPU is busy anyway, and the memory of large batches is not needed."""


class Lengths:
    """The lengths that are captured."""

    def __init__(self, longest: int) -> None:
        self.steps = length_steps(longest)
        self._follow: list[bool] = []
        """By output, whether it has a place for each place of its text."""

    def samples(self, sample: Mapping[int | str, Any]) -> list[dict[int | str, Any]]:
        """The sample at each length, the longest first: its own places again and again."""
        return [_resized(sample, length) for length in reversed(self.steps)]

    def most(self, sample: Mapping[int | str, Any], most: int) -> int:
        """The largest batch of texts like this one."""
        return max(1, min(most, _MOST_PLACES // max((len(row) for row in sample.values() if row.ndim), default=1)))

    def learn(self, run: Callable[[Mapping[int | str, Any]], Any], sample: Mapping[int | str, Any]) -> None:
        """Find out which outputs follow the length: those that differ with it."""
        shortest = self.steps[0] if len(self.steps) > 1 else (self.steps[0] + 1) // 2
        tried = [_resized(sample, length) for length in (self.steps[-1], shortest)]
        pairs = zip(*(leaves(run(each)) for each in tried), strict=True)
        self._follow = [a.ndim > 1 and a.shape[1] != b.shape[1] for a, b in pairs]

    def pad(self, arrays: Mapping[int | str, Any]) -> Mapping[int | str, Any]:
        """The same texts at the next length; as they are if they are longer than all."""
        length = length_of(arrays)
        step = up(self.steps, length)
        if step is None or step == length:
            return arrays
        return {key: _padded(array, step) for key, array in arrays.items()}

    def cut(self, output: Any, length: int) -> Any:
        """What a network gave for padded texts, without what belongs to the padding."""
        follow = iter(self._follow)
        return alike(output, lambda leaf: leaf[:, :length] if next(follow, False) else leaf)


def length_of(arrays: Mapping[int | str, Any]) -> int:
    """The length of a batch of texts."""
    return max((array.shape[1] for array in arrays.values() if array.ndim > 1), default=0)


def _resized(sample: Mapping[int | str, Any], length: int) -> dict[int | str, Any]:
    return {key: np.resize(row, (length, *row.shape[1:])) if row.ndim else row for key, row in sample.items()}


def _padded(array: Any, length: int) -> Any:
    if array.ndim < 2:
        return array
    made = np.zeros((len(array), length, *array.shape[2:]), array.dtype)
    made[:, : array.shape[1]] = array
    return made
