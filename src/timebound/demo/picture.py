"""A picture of one character, from a board, a clean scan or a ruled form, to the ink that the networks read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

Ink = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

# The networks were trained on ink that fills this share of a 64 x 64 frame.
_SIDE, _FILL = 64, 0.86
_INK = 0.35  # of the darkest: what counts as ink when the character is cut out
_FAINT = 24  # of 255: less contrast than this between paper and ink is an empty page
_CLEAN = 0.2  # of the darkest: more than this at the border is a line, a neighbour or dirt
_RED = np.array([0.5, -0.419, -0.081], np.float32)  # JPEG's own measure of red
_DARK_RED = 3.5
_LARGE, _FORM = 256, 112  # pixels a side: what a clean picture and a form are looked at in


def read_picture(picture: Bytes) -> Ink:
    """A grey or RGB picture of any size to 64 x 64 ink, 0 (paper) to 1, cut out and centred; an empty page stays empty.

    A grey picture with nothing at its border holds one character and no more. Any other is taken for a crop of a form:
    rules, the paper's tone and pieces of other characters are left out.
    """
    image = Image.fromarray(picture)
    if image.mode == "RGB" and not _is_coloured(picture):
        image = image.convert("L")
    image.thumbnail((_LARGE, _LARGE), Image.Resampling.BOX)
    if image.mode == "L":
        ink = _ink(np.asarray(image, np.float32))
        if max(ink[0].max(), ink[-1].max(), ink[:, 0].max(), ink[:, -1].max()) <= _CLEAN:
            return _cut_out(ink, ink > _INK)
    image.thumbnail((_FORM, _FORM), Image.Resampling.BOX)
    ink, redness = _ink_and_redness(image)
    ink = _without_rules(ink, redness)
    kept = _character(ink)
    ink *= _grown(kept)
    level = _level(ink[kept]) if kept.any() else 1.0
    return _cut_out(np.clip((ink / level - 0.08) / 0.92, 0, 1), kept)


def _is_coloured(picture: Bytes) -> bool:
    """Whether some of its pixels are more than a grey with a tinge."""
    few = picture[::2, ::2].astype(np.int16)
    return bool((np.abs(few[..., 0] - few[..., 2]) > 12).mean() > 0.005 or np.abs(few[..., 0] - few[..., 1]).max() > 24)


def _ink(tone: Ink) -> Ink:
    """How far each pixel is from the paper, 0..1. The paper's tone is that of most of the border."""
    paper = np.median(np.concatenate([tone[0], tone[-1], tone[:, 0], tone[:, -1]]))
    darker, lighter = paper - tone.min(), tone.max() - paper
    contrast = max(darker, lighter)
    if contrast < _FAINT:
        return np.zeros_like(tone)
    ink = paper - tone if darker >= lighter else tone - paper
    return np.asarray(np.clip(ink / contrast, 0, 1), np.float32)


def _cut_out(ink: Ink, where: Flags) -> Ink:
    """The part that holds ink, scaled to the frame; what lies around it comes along, paper where the picture ends."""
    rows, columns = (np.flatnonzero(where.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return np.zeros((_SIDE, _SIDE), np.float32)
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    half = max(bottom - top, right - left) / _FILL / 2
    x, y = (left + right) / 2, (top + bottom) / 2
    rim = int(half / 8) + 4  # more than the filter looks at
    corner = (int(x - half) - rim, int(y - half) - rim)
    wide = Image.fromarray(ink).crop((*corner, int(x + half) + rim, int(y + half) + rim))
    x, y = x - corner[0], y - corner[1]
    # A small scan is enlarged here, and a softer filter would blur its strokes.
    frame = wide.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS, box=(x - half, y - half, x + half, y + half))
    return np.clip(np.asarray(frame, np.float32), 0, 1)  # the filter swings beyond both


# --- forms: what is ink -------------------------------------------------------------------------------------------


def _ink_and_redness(image: Image.Image) -> tuple[Ink, Ink]:
    """How much darker than the paper around it each pixel is, in red light, and how much redder than the paper."""
    if image.mode == "RGB":
        colours = np.asarray(image, np.float32)
        tone = colours[..., 0]  # red light: rules and stamps are nearly as bright as paper
        redness = colours @ _RED
        # Redder than the paper, and than grey: black ink is redder than a green photograph.
        redness -= max(_at_share(redness, 0.5), 0.0)
    else:
        tone = np.asarray(image, np.float32)
        redness = np.zeros_like(tone)
    paper = _at_share(tone, 0.6)
    if tone.max() - paper > 1.5 * (paper - tone.min()) and paper < 110:
        tone, paper = 255 - tone, 255 - paper
    # Where there is ink, the paper is taken to be as elsewhere; then it is evened out over a wide stretch.
    bare = np.where(tone < paper - 18, paper, tone)
    around = Image.fromarray(np.clip(bare, 0, 255).astype(np.uint8)).filter(ImageFilter.BoxBlur(9))
    ink = np.asarray(around, np.float32) - tone
    # JPEG spreads colour over its neighbours, so a thin red line is too dark in its middle even in red light. What is
    # darker yet for its redness is ink: violet, or brown on a yellowish photograph.
    redness *= ink < _DARK_RED * redness
    return np.clip(ink - np.maximum(redness - 2, 0), 0, 255), redness


def _at_share(values: Ink, share: float) -> float:
    """The value that this share of all stays below."""
    flat = values.ravel()
    if len(flat) > 2000:
        flat = flat[::3]  # enough to know
    place = min(int(len(flat) * share), len(flat) - 1)
    return float(np.partition(flat, place)[place])


def _level(ink: Ink) -> float:
    """How dark a stroke's middle is."""
    return max(_at_share(ink, 0.9), 1.0)


# --- forms: rules ----------------------------------------------------------------------------------------------------


def _without_rules(ink: Ink, redness: Ink) -> Ink:
    """Ink without the lines that run through the picture from edge to edge: rows first, then columns near the sides."""
    if min(ink.shape) < 8:
        return ink
    level = _at_share(ink, 0.97)
    red = redness > 5
    ink = _without_lines(ink, red, level, reach=0.3, least=0.9)
    upright = np.ascontiguousarray(ink.T)
    return np.ascontiguousarray(_without_lines(upright, red.T, level, reach=0.3, least=0.92).T)


def _without_lines(ink: Ink, red: Flags, level: float, *, reach: float, least: float) -> Ink:
    """Ink without lines across: red ones anywhere, others of which at least so much is there near an edge."""
    high, wide = ink.shape
    third = wide // 3
    parts = (slice(0, third), slice(third, wide - third), slice(wide - third, wide))
    share = np.zeros((wide, 3), np.float32)
    for place, part in enumerate(parts):
        share[part, place] = 1 / (part.stop - part.start)
    dark = ink > max(level * 0.2, 8)
    dark[1:-1] |= dark[:-2] | dark[2:]  # a pixel up or down does not break a line
    cover = dark.astype(np.float32) @ share
    cover[:, 0] *= dark[:, 0]
    cover[:, 2] *= dark[:, -1]
    near = int(high * reach)
    cover[near : high - near] = 0
    rows = red.astype(np.float32) @ share > 0.5
    if (cover.max(0) > least).all():
        for tilt in (0, 1, -1, 2, -2):
            ends = np.minimum(_shifted(cover[:, 0], -tilt), _shifted(cover[:, 2], tilt))
            found = np.minimum(ends, cover[:, 1]) > least
            for place, by in enumerate((tilt, 0, -tilt)):
                rows[:, place] |= _shifted(found, by)
    if not rows.any():
        return ink
    out = ink.copy()
    for place, part in enumerate(parts):
        if 0 < rows[:, place].sum() < high:
            out[:, part] = _bridged(ink[:, part], rows[:, place])
    return out


def _shifted(values: Any, by: int) -> Any:
    """The values moved on by so many places, zeros moving in."""
    if by == 0:
        return values
    out = np.zeros_like(values)
    if by > 0:
        out[by:] = values[:-by]
    else:
        out[:by] = values[-by:]
    return out


def _bridged(ink: Ink, rows: Flags) -> Ink:
    """Ink without what is in these rows, but for strokes that go on above and below, or are darker than the line."""
    places = np.arange(len(rows))
    above = np.maximum.accumulate(np.where(rows, -1, places))
    below = np.minimum.accumulate(np.where(rows, len(rows), places)[::-1])[::-1]
    line = places[rows]
    edge = np.zeros((1, ink.shape[1]), np.float32)
    padded = np.concatenate([ink, edge])  # the place after the last is paper, and so is the one before the first
    up, down = padded[above[line]], padded[below[line]]
    for side in (up, down):  # a slanting stroke goes on a column further
        wider = side.copy()
        np.maximum(wider[:, 1:], side[:, :-1], out=wider[:, 1:])
        np.maximum(wider[:, :-1], side[:, 1:], out=wider[:, :-1])
        side[:] = wider
    here = ink[line]
    middle = here.shape[1] // 2
    level = np.partition(here, middle, 1)[:, middle : middle + 1]
    out = ink.copy()
    out[line] = np.maximum(np.minimum(here, np.minimum(up, down)), here - 1.5 * level)
    return out


# --- forms: the character among others -----------------------------------------------------------------------------


class _Pieces(NamedTuple):
    """Connected pieces of ink: the runs of pixels they are made of, and each one's box and size."""

    runs: Any  # [n, 4]: row, first column, column after the last, piece
    boxes: Any  # [pieces, 4]: top, bottom, left, right
    sizes: Any


def _character(ink: Ink) -> Flags:
    """Where the character is: all ink but pieces that come in from an edge, and specks."""
    high, wide = ink.shape
    strong = ink[ink > 10]
    where = np.zeros(ink.shape, bool)
    if not len(strong):
        return where
    seen = ink > max(_level(strong) * 0.38, 10)
    pieces = _pieces(seen)
    if pieces is None:
        return where
    keep = _belongs(pieces, high, wide)
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


def _grown(where: Flags) -> Flags:
    """These pixels and their neighbours: the soft edge of a stroke."""
    out = where.copy()
    out[1:] |= where[:-1]
    out[:-1] |= where[1:]
    wide = out.copy()
    wide[:, 1:] |= out[:, :-1]
    wide[:, :-1] |= out[:, 1:]
    return wide
