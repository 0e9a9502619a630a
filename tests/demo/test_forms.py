"""Crops of forms, drawn so that the truth is known: what the preparation leaves of the character and of all else."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest
from examples.handwriting.forms import BLACK, HEIGHT, NARROWEST, VARIED, WIDEST, Crop, Form, Odds, draw_form
from PIL import Image, ImageDraw

from timebound.demo.crop import ink_and_redness, without_rules
from timebound.demo.picture import read_picture
from timebound.demo.pieces import character, grown

Bytes = npt.NDArray[np.uint8]

# Strokes of 中, 本, 日, 大, 門 on a sheet of 64.
CHARACTERS = (
    [(10, 18, 54, 18), (10, 18, 10, 42), (54, 18, 54, 42), (10, 42, 54, 42), (32, 5, 32, 59)],
    [(8, 22, 56, 22), (32, 5, 32, 59), (32, 22, 8, 48), (32, 22, 56, 48), (22, 46, 42, 46)],
    [(16, 5, 48, 5), (16, 5, 16, 59), (48, 5, 48, 59), (16, 32, 48, 32), (16, 59, 48, 59)],
    [(5, 24, 59, 24), (32, 5, 30, 30), (30, 30, 8, 59), (30, 30, 57, 59)],
    [(8, 6, 8, 59), (8, 6, 26, 6), (26, 6, 26, 24), (8, 24, 26, 24), (38, 6, 56, 6), (38, 6, 38, 24), (56, 6, 56, 59)],
)


def sheet(strokes: list[tuple[int, int, int, int]], width: int = 4) -> Bytes:
    page = Image.new("L", (64, 64))
    for line in strokes:
        ImageDraw.Draw(page).line(line, fill=255, width=width)
    return np.asarray(page)


SHEETS = np.stack([sheet(strokes) for strokes in CHARACTERS])


def crop(seed: int) -> Crop:
    return draw_form(SHEETS[seed % 5], np.roll(SHEETS, seed, 0)[:4], seed)


def kept(picture: Bytes) -> npt.NDArray[np.bool_]:
    """Where the preparation sees the character."""
    return character(without_rules(*ink_and_redness(Image.fromarray(picture))))


def ruled(colour: tuple[int, int, int], pen: tuple[int, int, int], strokes: list[tuple[int, int, int, int]]) -> Bytes:
    """Beige paper with double lines above and below and one at the left; a character that crosses the lower ones."""
    page = Image.new("RGB", (60, HEIGHT), (244, 235, 215))
    ruler = ImageDraw.Draw(page)
    for y in (3, 7, 58, 62):
        ruler.line((0, y, 59, y), fill=colour)
    ruler.line((3, 0, 3, HEIGHT - 1), fill=colour)
    for line in strokes:
        ruler.line(line, fill=pen, width=3)
    return np.asarray(page)


def test_drawn_crops_have_the_sizes_of_real_ones_and_differ() -> None:
    crops = [crop(seed) for seed in range(40)]
    assert all(one.picture.shape[0] == HEIGHT and one.picture.shape[2] == 3 for one in crops)
    assert all(NARROWEST <= one.picture.shape[1] <= WIDEST for one in crops)
    assert len({one.picture.shape[1] for one in crops}) > 10
    assert crops[3].file == crop(3).file, "the same seed draws the same"
    assert crops[3].truth.shape == crops[3].picture.shape[:2]


def redness(odds: Odds) -> tuple[float, float]:
    """How red the reddest row and the reddest column of empty forms are."""
    blank, rows, columns = np.zeros((64, 64), np.uint8), [], []
    for seed in range(30):
        picture = draw_form(blank, np.stack([blank] * 4), seed, odds).picture.astype(float)
        red = picture[..., 0] - picture[..., 1]
        red -= np.median(red)
        rows.append(red.mean(1).max())
        columns.append(red.mean(0).max())
    return float(np.mean(rows)), float(np.mean(columns))


def test_varied_forms_have_what_plain_ones_have_not() -> None:
    rows, columns = redness(Odds())
    upright_rows, upright_columns = redness(Odds(sides=1))
    stamped_rows, stamped_columns = redness(Odds(stamps=1))
    assert rows > 2 * columns
    assert upright_columns > 2 * upright_rows
    assert stamped_rows + stamped_columns > 1.1 * (rows + columns)
    assert all(share > 0 for share in VARIED)
    plain, other = draw_form(SHEETS[0], SHEETS[1:], 3), draw_form(SHEETS[0], SHEETS[1:], 3, Odds(pens=1))
    assert plain.truth.shape == other.truth.shape
    assert not np.array_equal(plain.picture, other.picture)


def test_characters_on_drawn_forms_are_left_whole_and_little_else_is_left() -> None:
    """By the truth that the drawing knows: the share of its ink that is kept, and its share of what is kept."""
    whole, clean = [], []
    for seed in range(300):
        one = crop(seed)
        seen, truth = kept(one.picture), one.truth > 0.5
        whole.append((truth & grown(seen)).sum() / max(1, truth.sum()))
        clean.append((seen & grown(truth)).sum() / max(1, seen.sum()))
    assert np.mean(whole) > 0.97
    assert np.mean(np.array(whole) < 0.75) < 0.02
    assert np.mean(clean) > 0.86


def test_characters_in_black_on_black_rules_are_left_whole_and_little_else_is_left() -> None:
    """As above, for forms that colour tells nothing about."""
    whole, clean = [], []
    for seed in range(150):
        form = Form(np.random.default_rng(seed))
        form.rules = BLACK
        one = form.write(SHEETS[seed % 5], np.roll(SHEETS, seed, 0)[:4])
        grey = np.asarray(Image.fromarray(one.picture).convert("L"))
        seen, truth = kept(grey), one.truth > 0.5
        whole.append((truth & grown(seen)).sum() / max(1, truth.sum()))
        clean.append((seen & grown(truth)).sum() / max(1, seen.sum()))
    print(np.mean(whole), np.mean(np.array(whole) < 0.75), np.mean(clean))
    assert np.mean(whole) > 0.95
    assert np.mean(np.array(whole) < 0.75) < 0.05
    assert np.mean(clean) > 0.8


@pytest.mark.parametrize("colour", [(205, 70, 80), (225, 150, 150), (60, 58, 60)], ids=["red", "pale red", "black"])
@pytest.mark.parametrize("pen", [(40, 60, 160), (40, 40, 44)], ids=["blue", "black"])
def test_rules_are_gone_and_a_stroke_across_them_stays(colour: tuple[int, int, int], pen: tuple[int, int, int]) -> None:
    seen = kept(ruled(colour, pen, [(18, 25, 46, 25), (32, 14, 32, 64)]))
    assert not seen[:10].any()
    assert not seen[:, :8].any()
    assert not seen[56:, 40:].any()
    assert not seen[56:, :26].any()
    assert seen[14:64, 32].all(), "the stroke that crosses both lower lines is whole"
    assert seen[25, 18:46].all()


def test_a_long_stroke_inside_the_character_is_no_rule() -> None:
    seen = kept(ruled((205, 70, 80), (40, 60, 160), [(9, 34, 57, 34), (32, 15, 32, 52)]))
    assert seen[34, 9:57].all()


def test_the_strokes_at_the_sides_of_a_wide_character_are_no_neighbours() -> None:
    """川 in a crop as tight as can be, but not cut."""
    strokes = [(4, 16, 4, 48), (29, 16, 29, 48), (55, 16, 55, 48)]
    page = Image.new("RGB", (60, HEIGHT), (250, 232, 230))
    for line in strokes:
        ImageDraw.Draw(page).line(line, fill=(40, 60, 160), width=3)
    seen = kept(np.asarray(page))
    assert all(seen[20:44, x].all() for x in (4, 29, 55))


def test_pieces_of_neighbours_and_of_other_rows_are_left_out() -> None:
    page = ruled((205, 70, 80), (40, 60, 160), [(20, 18, 44, 18), (32, 18, 32, 50), (20, 50, 44, 50)]).copy()
    page[30:44, 55:60] = page[0:5, 20:30] = page[63:67, 25:40] = (40, 60, 160)
    seen = kept(page)
    assert not seen[:, 53:].any()
    assert not seen[:10].any()
    assert not seen[56:].any()
    assert seen[18, 22:43].all()
    assert seen[50, 22:43].all()


def test_the_tone_of_the_paper_does_not_matter() -> None:
    strokes = [(18, 20, 46, 20), (32, 20, 32, 50)]
    beige = ruled((205, 70, 80), (40, 60, 160), strokes)
    shade = np.linspace(0.7, 1.0, 60)[None, :, None]
    photo = (beige * shade * np.array([0.8, 0.85, 0.78])).astype(np.uint8)
    first, second = read_picture(beige), read_picture(photo)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.93
    assert np.median(second) == 0


def test_an_empty_form_has_no_ink() -> None:
    assert read_picture(ruled((205, 70, 80), (0, 0, 0), [])).max() == 0


def test_a_clean_picture_in_colour_is_read_like_a_grey_one() -> None:
    grey = 255 - np.pad(SHEETS[0], 20)
    colour = np.stack([grey, grey, grey], -1)
    assert np.array_equal(read_picture(grey), read_picture(colour))
    blue = np.where(grey[..., None] < 128, np.array([30, 50, 170], np.uint8), np.uint8(255))
    assert np.corrcoef(read_picture(grey).ravel(), read_picture(blue).ravel())[0, 1] > 0.97


def test_a_crop_is_prepared_within_a_millisecond() -> None:
    """The fastest of many: this machine may be busy."""
    pictures = [crop(seed).picture for seed in range(20)]
    took = []
    for picture in pictures * 20:
        began = time.perf_counter()
        read_picture(picture)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.001
