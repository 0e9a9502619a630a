"""Clean pictures: cut as tightly as can be or with a margin, by any pen, on any paper, they are read alike."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw

import timebound as tb
from timebound.demo.app import SAMPLES
from timebound.demo.picture import is_clean, read_picture

Bytes = npt.NDArray[np.uint8]

STROKES = {
    "川": [(12, 10, 12, 100), (60, 16, 60, 92), (108, 10, 108, 108)],
    "土": [(30, 40, 90, 40), (60, 8, 60, 108), (8, 108, 112, 108)],
    "言": [
        (52, 6, 66, 16),
        (10, 28, 110, 28),
        (30, 48, 90, 48),
        (32, 70, 88, 70),
        (32, 70, 32, 108),
        (32, 108, 88, 108),
    ],
    "口": [(10, 10, 110, 10), (10, 10, 10, 110), (110, 10, 110, 110), (10, 110, 110, 110)],
    "永": [
        (54, 6, 66, 18),
        (36, 34, 60, 34),
        (60, 34, 60, 110),
        (14, 60, 50, 60),
        (100, 44, 70, 64),
        (66, 60, 108, 106),
    ],
}
PENS = [(0, 0, 0), (30, 50, 170), (220, 30, 30), (180, 0, 0), (255, 0, 0), (230, 60, 120), (200, 100, 0), (0, 130, 60)]


def drawn(strokes: list[tuple[int, int, int, int]]) -> Bytes:
    """Black strokes on white, with a margin."""
    page = Image.new("L", (240, 240), 255)
    for line in strokes:
        ImageDraw.Draw(page).line([2 * one for one in line], fill=0, width=14)
    return np.asarray(page.resize((120, 120), Image.Resampling.BOX))


def samples() -> dict[str, Bytes]:
    """The page's samples that are grey."""
    pictures = {one["title"]: tb.image.decode(base64.b64decode(one["image"]), mode="RGB") for one in SAMPLES}
    return {title: picture[..., 0] for title, picture in pictures.items() if not np.ptp(picture, axis=2).any()}


def tight(picture: Bytes) -> Bytes:
    """What holds ink, and no more."""
    dark = picture < 160
    rows, columns = np.flatnonzero(dark.any(1)), np.flatnonzero(dark.any(0))
    return picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def coloured(picture: Bytes, pen: tuple[int, int, int]) -> Bytes:
    """The same, written by this pen."""
    share = 1 - picture[..., None] / 255
    return np.asarray(255 - share * (255 - np.array(pen)), np.uint8)


PICTURES = {**{char: drawn(strokes) for char, strokes in STROKES.items()}, **samples()}


@pytest.mark.parametrize("char", PICTURES)
def test_a_character_cut_tightly_is_read_as_one_with_a_margin(char: str) -> None:
    cut = tight(PICTURES[char])
    padded = np.pad(cut, 12, constant_values=255)
    assert is_clean(cut)
    assert np.abs(read_picture(cut) - read_picture(padded)).max() < 0.02
    assert np.abs(read_picture(255 - padded) - read_picture(padded)).max() < 0.02


@pytest.mark.parametrize("pen", PENS)
@pytest.mark.parametrize("margin", [0, 12])
def test_a_pen_of_any_colour_is_read_like_a_black_one(pen: tuple[int, int, int], margin: int) -> None:
    for char in STROKES:
        cut = np.pad(tight(PICTURES[char]), margin, constant_values=255)
        assert np.corrcoef(read_picture(coloured(cut, pen)).ravel(), read_picture(cut).ravel())[0, 1] > 0.99


@pytest.mark.parametrize("pen", PENS[2:7])
def test_a_red_pen_on_a_form_is_read_although_rules_are_red(pen: tuple[int, int, int]) -> None:
    page = Image.new("RGB", (66, 67), (244, 235, 215))
    ruler = ImageDraw.Draw(page)
    for y in (3, 7, 58, 62):
        ruler.line((0, y, 65, y), fill=(205, 70, 80))
    form = np.asarray(page).copy()
    character = np.asarray(Image.fromarray(PICTURES["永"]).resize((40, 40), Image.Resampling.BOX))
    form[14:54, 14:54] = np.minimum(form[14:54, 14:54], coloured(character, pen))
    read, meant = read_picture(form), read_picture(PICTURES["永"])
    assert not is_clean(form)
    assert np.corrcoef(read.ravel(), meant.ravel())[0, 1] > 0.85


def test_the_edge_of_a_red_stamp_on_an_empty_form_is_no_character() -> None:
    page = Image.new("RGB", (66, 67), (250, 250, 248))
    ImageDraw.Draw(page).ellipse((10, 30, 70, 90), outline=(215, 50, 60), width=3)
    ImageDraw.Draw(page).line((0, 5, 65, 5), fill=(205, 70, 80))
    assert read_picture(np.asarray(page)).max() == 0


def test_a_rule_across_a_clean_grey_picture_is_the_sign_of_a_form() -> None:
    picture = np.pad(PICTURES["口"][8:112, 8:112], ((20, 8), (8, 8)), constant_values=255)
    assert is_clean(picture)
    picture[8:10] = 0
    assert not is_clean(picture)
    assert np.corrcoef(read_picture(picture).ravel(), read_picture(PICTURES["口"]).ravel())[0, 1] > 0.85
