"""Connected pieces of ink: which of them are the character's, and which come in from an edge."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ink = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class _Pieces(NamedTuple):
    """Connected pieces of ink: the runs of pixels they are made of, and each one's box and size."""

    runs: Any  # [n, 4]: row, first column, column after the last, piece
    boxes: Any  # [pieces, 4]: top, bottom, left, right
    sizes: Any


def character(ink: Ink, *, inside: bool = False) -> Flags:
    """Where the character is: all ink but pieces that come in from an edge, and specks; none at all that
    touches an edge if it must be `inside`, and nothing if what is left is small."""
    high, wide = ink.shape
    strong = ink[ink > 10]
    where = np.zeros(ink.shape, bool)
    if not len(strong):
        return where
    seen = ink > max(level_of(strong) * 0.38, 10)
    pieces = _pieces(seen)
    if pieces is None:
        return where
    keep = _belongs(pieces, high, wide)
    if inside:
        keep &= _is_inside(pieces, high, wide)
    runs = pieces.runs[keep[pieces.runs[:, 3]]]
    edges = np.zeros((high, wide + 1), np.int8)
    edges[runs[:, 0], runs[:, 1]] += 1
    edges[runs[:, 0], runs[:, 2]] -= 1
    return np.asarray(edges.cumsum(1, dtype=np.int8)[:, :wide] > 0)


def _belongs(pieces: _Pieces, high: int, wide: int) -> Flags:
    """Which pieces are the character's."""
    top, bottom, left, right = pieces.boxes.T
    sizes = pieces.sizes
    largest = sizes.max()
    small = sizes < 0.45 * largest
    sideways = ((left <= 0) & (right < 0.34 * wide)) | ((right >= wide) & (left > 0.66 * wide))
    updown = ((top <= 0) & (bottom < 0.25 * high)) | ((bottom >= high) & (top > 0.75 * high))
    specks = sizes < max(3, 0.0012 * high * wide)
    outside = (bottom < 0.16 * high) | (top > 0.84 * high)
    rests = outside & (bottom - top <= max(2, 0.05 * high)) & (sizes < 0.2 * largest)  # of a rule
    keep = ~((small & (sideways | updown)) | specks | rests)
    if not keep.any():
        keep[sizes.argmax()] = True
    return np.asarray(keep)


def _is_inside(pieces: _Pieces, high: int, wide: int) -> Flags:
    """Which pieces touch no edge; none if not one of them is a quarter as high as the picture."""
    top, bottom, left, right = pieces.boxes.T
    inside = (top > 0) & (bottom < high) & (left > 0) & (right < wide)
    return np.asarray(inside & ((bottom - top)[inside] >= high / 4).any())


def _pieces(seen: Flags) -> _Pieces | None:
    """Pixels that touch, corner to corner at least, as pieces."""
    steps = np.diff(np.pad(seen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, begins = np.nonzero(steps == 1)
    if not len(rows):
        return None
    ends = np.nonzero(steps == -1)[1]
    piece = np.array(_joined(rows.tolist(), begins.tolist(), ends.tolist()))
    order = np.unique(piece, return_inverse=True)[1]
    count = int(order.max()) + 1
    boxes = np.empty((count, 4), np.int64)
    boxes[:, ::2], boxes[:, 1::2] = 1 << 30, -1
    np.minimum.at(boxes[:, 0], order, rows)
    np.maximum.at(boxes[:, 1], order, rows + 1)
    np.minimum.at(boxes[:, 2], order, begins)
    np.maximum.at(boxes[:, 3], order, ends)
    sizes = np.bincount(order, ends - begins, count)
    return _Pieces(np.stack([rows, begins, ends, order], 1), boxes, sizes)


def _joined(rows: list[int], begins: list[int], ends: list[int]) -> list[int]:
    """For each run of pixels, in order, a run that stands for its piece."""
    parent = list(range(len(rows)))
    above = 0  # the first run of the row before that may still touch
    for here, row in enumerate(rows):
        begin, end = begins[here], ends[here]
        while above < here and (rows[above] < row - 1 or (rows[above] == row - 1 and ends[above] < begin)):
            above += 1
        other = above
        while other < here and rows[other] == row - 1 and begins[other] <= end:
            first, second = other, here
            while parent[first] != first:
                first = parent[first]
            while parent[second] != second:
                second = parent[second]
            if first != second:
                parent[max(first, second)] = min(first, second)
            other += 1
    for place, one in enumerate(parent):
        parent[place] = parent[one]  # parents come first, and theirs are settled
    return parent


def grown(where: Flags) -> Flags:
    """These pixels and their neighbours: the soft edge of a stroke."""
    out = where.copy()
    out[1:] |= where[:-1]
    out[:-1] |= where[1:]
    wide = out.copy()
    wide[:, 1:] |= out[:, :-1]
    wide[:, :-1] |= out[:, 1:]
    return wide


def at_share(values: Ink, share: float) -> float:
    """The value that this share of all stays below."""
    flat = values.ravel()
    if len(flat) > 2000:
        flat = flat[::3]  # enough to know
    place = min(int(len(flat) * share), len(flat) - 1)
    return float(np.partition(flat, place)[place])


def level_of(ink: Ink) -> float:
    """How dark a stroke's middle is."""
    return max(at_share(ink, 0.9), 1.0)
