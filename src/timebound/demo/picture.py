"""A picture of one character, from a board, a clean scan or a ruled form, to the ink that the networks read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from timebound.demo.crop import read_crop
from timebound.demo.pieces import Flags, Ink

Bytes = npt.NDArray[np.uint8]

# The networks were trained on ink that fills this share of a 64 x 64 frame.
_SIDE, _FILL = 64, 0.86
_INK = 0.35  # of the darkest: what counts as ink when the character is cut out
_FAINT = 24  # of 255: less contrast than this between paper and ink is an empty page
_CLEAN = 0.2  # of the darkest: more than this at the border is a line, a neighbour, dirt or a tight cut
_EVEN = 2  # of 255: paper that differs by more from its tone has a grain, or a JPEG's noise
_MIXED = 12  # of 255: a colour that is farther from all mixtures of paper and ink is a third one
_LARGE, _FORM = 256, 112  # pixels a side: what a clean picture and a form are looked at in


def read_picture(picture: Bytes) -> Ink:
    """A grey or RGB picture of any size to 64 x 64 ink, 0 (paper) to 1, cut out and centred; an empty page has none."""
    image = _opened(picture)
    ink = _clean(image)
    if ink is not None:
        return _cut_out(ink, ink > _INK)
    image.thumbnail((_FORM, _FORM), Image.Resampling.BOX)
    return _cut_out(*read_crop(image))


def is_clean(picture: Bytes) -> bool:
    """Whether `read_picture` takes it for a clean picture of one character, and not for a crop of a form."""
    return _clean(_opened(picture)) is not None


def _opened(picture: Bytes) -> Image.Image:
    image = Image.fromarray(picture)
    if image.mode == "RGB" and not _is_coloured(picture):
        image = image.convert("L")
    image.thumbnail((_LARGE, _LARGE), Image.Resampling.BOX)
    return image


def _clean(image: Image.Image) -> Ink | None:
    """The ink of a picture that holds one character and no more; None where it has signs of a form.

    A grey one with nothing at its border is clean. So is one that is cut tightly around its character, in any colour,
    if the paper is quite even, there is one colour beside the paper's, and no rule runs through it.
    """
    colours = np.asarray(image, np.float32)
    if colours.ndim == 3:
        # Few pixels tell nearly every form.
        if not (_is_of_two_colours(colours[::4, ::4]) and _is_of_two_colours(colours)):
            return None
        colours = _widest(colours)
        ink = _ink(colours)
    else:
        ink = _ink(colours)
        if max(ink[0].max(), ink[-1].max(), ink[:, 0].max(), ink[:, -1].max()) <= _CLEAN:
            return ink
    return None if not _is_even(colours, ink) or _has_rule(ink) or _has_rule(ink.T) else ink


def _widest(colours: Ink) -> Ink:
    """The channel in which ink and paper differ most."""
    flat = colours.reshape(-1, 3)
    return np.ascontiguousarray(colours[..., (flat.max(axis=0) - flat.min(axis=0)).argmax()])


def _is_of_two_colours(colours: Ink) -> bool:
    """Whether every pixel is paper, ink, or a mixture of the two; a JPEG in colour never is."""
    ink = _ink(_widest(colours))
    if not ink.any():
        return False
    paper, full = colours[ink < 0.1].mean(axis=0), colours[ink > 0.9].mean(axis=0)
    return bool(np.abs(paper + ink[..., None] * (full - paper) - colours).max() < _MIXED)


def _is_even(tone: Ink, ink: Ink) -> bool:
    """Whether the paper has one tone, but for the soft edges of strokes."""
    near = Image.fromarray(ink > 0.1).convert("L").filter(ImageFilter.MaxFilter(2 * (2 + max(ink.shape) // 60) + 1))
    bare = tone[np.asarray(near) == 0]
    return not len(bare) or bool((np.abs(bare - np.median(bare)) <= _EVEN).mean() > 0.97)


def _has_rule(ink: Ink) -> bool:
    """Whether a line runs from side to side with paper beyond it; a long stroke of a tightly cut character has none."""
    rows, columns = (np.asarray((ink > _INK).all(axis=axis)) for axis in (1, 0))
    lines = np.flatnonzero(rows)
    if not len(lines) or rows.all():
        return False
    gaps = np.flatnonzero(~rows)
    inner = lines[(lines > gaps[0]) & (lines < gaps[-1])]  # a line at the very edge may be a stroke
    if not ((inner < 0.3 * len(ink)) | (inner >= 0.7 * len(ink))).any():
        return False
    third = len(columns) // 3
    columns[third:-third] = False
    # Lines that run upright near the sides reach the upper and lower border as well.
    return not ((ink[0] > _CLEAN)[~columns].any() and (ink[-1] > _CLEAN)[~columns].any())


def _is_coloured(picture: Bytes) -> bool:
    """Whether some of its pixels are more than a grey with a tinge."""
    few = picture[::2, ::2].astype(np.int16)
    return bool((np.abs(few[..., 0] - few[..., 2]) > 12).mean() > 0.005 or np.abs(few[..., 0] - few[..., 1]).max() > 24)


def _ink(tone: Ink) -> Ink:
    """How far each pixel is from the paper, 0..1."""
    paper = _paper(tone)
    darker, lighter = paper - tone.min(), tone.max() - paper
    contrast = max(darker, lighter)
    if contrast < _FAINT:
        return np.zeros_like(tone)
    ink = paper - tone if darker >= lighter else tone - paper
    return np.asarray(np.clip(ink / contrast, 0, 1), np.float32)


def _paper(tone: Ink) -> float:
    """The paper's tone: that of the border, or of most of the picture where strokes reach the border or frame it."""
    border = np.concatenate([tone[0], tone[-1], tone[:, 0], tone[:, -1]])
    middle = (tone.min() + tone.max()) / 2
    light = border >= middle
    share = (tone >= middle).mean()
    # Dark frames around light paper are more frequent than light ones around dark paper.
    if (light.all() and share > 0.2) or (not light.any() and share < 0.6):
        return float(np.median(border))
    return float(np.median(tone[tone >= middle] if share > 0.4 else tone[tone < middle]))


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
