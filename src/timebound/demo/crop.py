"""A crop of a ruled form to the ink of its character: the rules and the paper's tone removed."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from timebound.demo.pieces import Flags, Ink, at_share, character, grown, level_of

_RED = np.array([0.5, -0.419, -0.081], np.float32)  # JPEG's own measure of red
_DARK_RED = 3.5


def read_crop(image: Image.Image) -> tuple[Ink, Flags]:
    """Ink, 0 to 1, and where the character is; rules, the paper's tone and pieces of other characters are left out."""
    ink, redness = ink_and_redness(image)
    ink = without_rules(ink, redness)
    kept = character(ink)
    if _is_written_in_red(redness, kept):
        ink, kept = _in_green_light(image, ink, kept)
    ink *= grown(kept)
    level = level_of(ink[kept]) if kept.any() else 1.0
    return np.clip((ink / level - 0.08) / 0.92, 0, 1), kept


def _is_written_in_red(redness: Ink, kept: Flags) -> bool:
    """Whether there is far more red than ink in the middle, where neither rules nor stamps often are."""
    high, wide = redness.shape
    middle = slice(high // 4, high - high // 4), slice(wide // 6, wide - wide // 6)
    red = redness[middle] > 25
    return bool(red.mean() > 0.03 and red.sum() > 3 * kept[middle].sum())


def _in_green_light(image: Image.Image, ink: Ink, kept: Flags) -> tuple[Ink, Flags]:
    """What a red pen wrote, which is dark in green light; or what was given, if all that is red comes from an edge."""
    green, even = ink_and_redness(image.getchannel("G"))
    green = without_rules(green, even)
    written = character(green, inside=True)
    return (green, written) if written.any() else (ink, kept)


def ink_and_redness(image: Image.Image) -> tuple[Ink, Ink]:
    """How much darker than the paper around it each pixel is, in red light, and how much redder than the paper."""
    if image.mode == "RGB":
        colours = np.asarray(image, np.float32)
        tone = colours[..., 0]  # red light: rules and stamps are nearly as bright as paper
        redness = colours @ _RED
        # Redder than the paper, and than grey: black ink is redder than a green photograph.
        redness -= max(at_share(redness, 0.5), 0.0)
    else:
        tone = np.asarray(image, np.float32)
        redness = np.zeros_like(tone)
    paper = at_share(tone, 0.6)
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


def without_rules(ink: Ink, redness: Ink) -> Ink:
    """Ink without the lines that run through the picture from edge to edge: rows first, then columns near the sides."""
    if min(ink.shape) < 8:
        return ink
    level = at_share(ink, 0.97)
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
