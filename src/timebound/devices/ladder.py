"""The closed set of shapes that a device runs: batches, and lengths of texts, are padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_BELOW = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_STEP = 16
"""From 64 on; a batch that falls between two steps wastes at most a fifth, and on average a tenth."""
_FAR, _FAR_STEP = 256, 64
_FINEST_LENGTH = 8


def batch_steps(top: int) -> list[int]:
    """Batch sizes up to `top`, which is one of them: fine where large batches earn most."""
    steps = [size for size in _BELOW if size < top]
    steps += range(_BELOW[-1] + _STEP, min(top, _FAR + 1), _STEP)
    steps += range(_FAR + _FAR_STEP, top, _FAR_STEP)
    return [*steps, top]


def few_steps(top: int) -> list[int]:
    """The same where each step costs seconds to prepare, as for a compiler."""
    return [*(size for size in (1, 8, 32, 64, 128, 256, 512) if size < top), top]


def length_steps(longest: int) -> list[int]:
    """Lengths up to `longest`, two to each doubling: 16, 24, 32, 48, 64, 96 ..."""
    steps, length = [], _FINEST_LENGTH
    while length < longest:
        steps += [length, length * 3 // 2]
        length *= 2
    return [*(step for step in steps if step < longest), longest]


def up(steps: Sequence[int], size: int) -> int | None:
    """The smallest step that holds so many; None if none does."""
    place = bisect_left(steps, size)
    return steps[place] if place < len(steps) else None
