"""Crops of ruled forms: paper, lines, pens, neighbours, stamps and a poor JPEG around a character; numpy and Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

HEIGHT, NARROWEST, WIDEST = 67, 27, 82
FILL = 0.86
"""The share of its frame that a given character fills, as `paper.centred` leaves it."""
RED, BLACK, NONE = range(3)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_PAPERS = ((250, 250, 248), (251, 232, 230), (245, 235, 216), (249, 241, 203), (231, 232, 230), (240, 226, 232))
_PHOTOGRAPHED = (168, 178, 162)
_ROWS, _COLUMNS = np.arange(HEIGHT, dtype=np.float32)[:, None], np.arange(WIDEST, dtype=np.float32)[None]


class Crop(NamedTuple):
    """A crop as it comes from a scanner, and how much of each pixel is ink of the character that is meant."""

    file: bytes
    """A JPEG."""
    picture: Bytes
    truth: Floats


class Odds(NamedTuple):
    """How often a form has what most have not."""

    sides: float = 0.0
    """Upright lines at one or both sides, and none across."""
    pens: float = 0.0
    """Neighbours in another pen."""
    stamps: float = 0.0
    """A stamp's edge over the ink."""


PLAIN, VARIED = Odds(), Odds(sides=0.1, pens=0.35, stamps=0.1)


class Form:
    """One form with its paper, rules and pen; draws a character on it. All chance comes from one generator."""

    def __init__(self, chance: np.random.Generator, odds: Odds = PLAIN) -> None:
        self._chance, self._odds = chance, odds
        self._draws: Iterator[float] = iter(chance.random(160 if odds == PLAIN else 240).tolist())  # one call for all
        self.is_photo = self._often(0.15)
        self.rules = BLACK if self._often(0.1) else NONE if self._often(0.07) else RED

    def write(self, character: Bytes, others: Bytes) -> Crop:
        """The character [64, 64] among pieces of four others: before, after, above and below it."""
        truth, other = self._placed(character, others)
        sheet = self._paper(truth.shape[1])
        sheet = self._upright(sheet) if self._has(self._odds.sides) else self._ruled(sheet)
        if self._often(0.05):
            sheet = _laid(sheet, self._stamp(sheet.shape[1]), self._red())
        if self._has(self._odds.pens):
            sheet = self._inked(sheet, np.zeros_like(truth), other)
            other = np.zeros_like(other)
        sheet = self._inked(sheet, truth, other)
        if self._has(self._odds.stamps):
            cover = self._stamp(sheet.shape[1])
            sheet = np.minimum(sheet, _laid(sheet, cover, self._red()))  # ink shows through
        file = self._scanned(sheet)
        return Crop(file, np.asarray(Image.open(io.BytesIO(file))), truth)

    # --- chance -----------------------------------------------------------------------------------------------

    def _some(self, low: float, high: float) -> float:
        return low + next(self._draws) * (high - low)

    def _often(self, share: float) -> bool:
        return next(self._draws) < share

    def _has(self, share: float) -> bool:
        """Like `_often`, but takes no chance for what never is: plain forms stay the same for the same seed."""
        return share > 0 and self._often(share)

    def _sized(self, side: int) -> int:
        return max(6, round(side * self._some(0.8, 1.2)))

    def _tone(self, colour: tuple[float, float, float], spread: float) -> Floats:
        same = self._some(-spread, spread)
        return np.array([one + same + self._some(-spread, spread) / 2 for one in colour], np.float32)

    def _red(self) -> Floats:
        pale = self._some(0, 90)
        return np.array([self._some(190, 238), self._some(40, 80) + pale, self._some(50, 95) + pale], np.float32)

    def _grain(self, width: int, cells: int) -> Floats:
        """A soft field from -1 to 1: so many cells high, as many wide as fit."""
        small = self._chance.integers(0, 256, (cells, max(2, cells * width // HEIGHT)), np.uint8)
        field = Image.fromarray(small).resize((width, HEIGHT), Image.Resampling.BICUBIC)
        return np.asarray(field, np.float32) / 127.5 - 1

    # --- the character and what is around it ---------------------------------------------------------------------

    def _placed(self, character: Bytes, others: Bytes) -> tuple[Floats, Floats]:
        """Coverage by the character, and by pieces of others; the crop is cut around it, loosely or too tightly."""
        high = HEIGHT * (self._some(0.3, 0.9) + self._some(0.45, 0.9)) / 2 if self._often(0.75) else self._some(20, 62)
        wide = high * self._some(0.68, 1.15)
        frame = (max(6, round(wide / FILL)), max(6, round(high / FILL)))
        ink = np.asarray(Image.fromarray(character).resize(frame, Image.Resampling.BILINEAR))
        lit = ink > 80
        columns, rows = np.flatnonzero(lit.any(0)), np.flatnonzero(lit.any(1))
        if not len(columns):
            columns, rows = np.arange(frame[0]), np.arange(frame[1])
        across, down = int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1
        before, after = self._some(-1.5, 13), self._some(-1.5, 13)
        if self._often(0.15):
            before += self._some(0, 14)
        width = int(np.clip(round(across + before + after), NARROWEST, WIDEST))
        left = round((width - across) * before / (before + after)) if before + after > 3 else (width - across) // 2
        top = round((HEIGHT - down) / 2 + (self._some(-8, 8) + self._some(-8, 8)) / 2)
        top = min(max(top, -3), HEIGHT - down + 3)
        truth, other = np.zeros((HEIGHT, width), np.uint8), np.zeros((HEIGHT, width), np.uint8)
        _put(truth, ink, left - int(columns[0]), top - int(rows[0]))
        for turn, share in enumerate((0.65, 0.65, 0.14, 0.14)):
            if not self._often(share):
                continue
            size = (self._sized(frame[0]), self._sized(frame[1]))
            piece = np.asarray(Image.fromarray(others[turn]).resize(size, Image.Resampling.BILINEAR))
            rim = round(size[0] * (1 - FILL) / 2)
            gap, aside = self._some(-4, 12), self._some(-6, 6)
            if turn < 2:
                x = left - gap - size[0] + rim if turn == 0 else left + across + gap - rim
                _put(other, piece, round(x), round(HEIGHT / 2 - size[1] / 2 + aside))
            else:
                seen = self._some(1, 11) + size[1] * (1 - FILL) / 2
                y = seen - size[1] if turn == 2 else HEIGHT - seen
                _put(other, piece, round(width / 2 - size[0] / 2 + 2 * aside), round(y))
        return truth.astype(np.float32) / np.float32(255), other.astype(np.float32) / np.float32(255)

    # --- the form ------------------------------------------------------------------------------------------------

    def _paper(self, width: int) -> Floats:
        base = _PHOTOGRAPHED if self.is_photo else _PAPERS[int(self._some(0, len(_PAPERS)))]
        tone = self._tone(base, 28 if self.is_photo else 7)
        grain = self._chance.standard_normal((HEIGHT, width), np.float32) * self._some(0, 4.5)
        grain += self._grain(width, 5) * (self._some(3, 14) if self.is_photo else self._some(0, 4))
        if self._often(0.5):  # a bank's fine waves
            turn, wave = self._some(0, 3.2), self._some(0.5, 2.2)
            steps = wave * (np.cos(turn) * _ROWS + np.sin(turn) * _COLUMNS[:, :width])
            grain += np.sin(steps, dtype=np.float32) * self._some(0, 6)
        if self.is_photo or self._often(0.2):
            slope = self._some(-18, 18)
            grain += (_COLUMNS[:, :width] / width - 0.5) * slope + (_ROWS / HEIGHT - 0.5) * self._some(-18, 18)
        tint = np.array([1.0, self._some(0.75, 1.15), self._some(0.7, 1.2)], np.float32)
        return tone + grain[..., None] * tint

    def _ruled(self, sheet: Floats) -> Floats:
        """Double lines above and below, at times one at a side or through the character."""
        width = sheet.shape[1]
        if self.rules == NONE:
            return sheet
        is_black = self.rules == BLACK
        colour = self._tone((60, 58, 62), 35) if is_black else self._red()
        tilt = self._some(-1, 1) ** 3 * 0.06
        half, apart = self._some(0.3, 1.1), self._some(2.2, 7)
        lines = []
        if self._often(0.85):
            y = self._some(-1, 9)
            lines += [y, y + apart] if self._often(0.8) else [y]
        if self._often(0.85):
            y = HEIGHT - 1 - self._some(-1, 9)
            lines += [y, y - apart] if self._often(0.8) else [y]
        if self._often(0.07):
            lines.append(self._some(14, 52))
        cover = np.zeros((HEIGHT, width), np.float32)
        way = _ROWS - tilt * (_COLUMNS[:, :width] - width / 2)
        for line in lines:
            thick = half * self._some(0.7, 1.4)
            np.maximum(cover, np.clip(thick + 0.5 - np.abs(way - line), 0, min(1, 2 * thick)), out=cover)
        strength = self._some(0.35, 1.0)
        if self._often(0.4):
            cover *= 1 + 0.4 * self._grain(width, 6)
        sheet = _laid(sheet, cover * strength, colour)
        if self._often(0.2):
            if not is_black and self._often(0.4):
                colour, strength = self._tone((60, 58, 62), 35), self._some(0.5, 1)
            x = self._some(-1, 8) if self._often(0.5) else width - 1 - self._some(-1, 8)
            thick = self._some(0.3, 1.2)
            side = np.clip(thick + 0.5 - np.abs(_COLUMNS[:, :width] - x + tilt * (_ROWS - HEIGHT / 2)), 0, 1)
            sheet = _laid(sheet, side * strength, colour)
        return sheet

    def _upright(self, sheet: Floats) -> Floats:
        """Lines at the left, the right or both sides, and none across."""
        width = sheet.shape[1]
        colour = self._tone((60, 58, 62), 35) if self.rules == BLACK else self._red()
        lean, side = self._some(-0.05, 0.05), self._some(0, 3)
        for x in [0.0] if side < 1 else [width - 1.0] if side < 2 else [0.0, width - 1.0]:
            place = abs(x - self._some(-1, 8))
            far = np.abs(_COLUMNS[:, :width] - place + lean * (_ROWS - HEIGHT / 2))
            line = np.clip(self._some(0.3, 1.2) + 0.5 - far, 0, 1) * self._some(0.4, 1)
            sheet = _laid(sheet, line, colour)
        return sheet

    def _stamp(self, width: int) -> Floats:
        """The edge of a round or square seal whose middle is somewhere else."""
        x, y = self._some(-20, width + 20), -self._some(5, 30) if self._often(0.5) else HEIGHT + self._some(5, 30)
        far = self._some(24, 46)
        dx, dy = np.abs(_COLUMNS[:, :width] - x), np.abs(_ROWS - y)
        away = np.sqrt(dx * dx + dy * dy) if self._often(0.6) else np.maximum(dx, dy)
        rim = np.clip(self._some(0.8, 2.2) + 0.5 - np.abs(away - far), 0, 1) * self._some(0.4, 0.95)
        return np.asarray(rim * (0.8 + 0.2 * self._grain(width, 12)), np.float32)

    def _inked(self, sheet: Floats, truth: Floats, other: Floats) -> Floats:
        """Blue, black or grey, now and then violet; a ball pen that skips."""
        kind = self._some(0, 1)
        if kind < 0.42:
            colour = np.array([self._some(15, 95), self._some(35, 115), self._some(110, 205)], np.float32)
        elif kind < 0.8:
            colour = self._tone((48, 48, 52), 32)
        elif kind < 0.96:
            colour = self._tone((112, 112, 118), 32)
        else:
            colour = np.array([self._some(70, 125), self._some(30, 80), self._some(80, 140)], np.float32)
        strength = self._some(0.55, 1.0)
        field = 1 - (0.5 + 0.5 * self._grain(sheet.shape[1], 9)) * self._some(0, 0.6) if self._often(0.6) else 1.0
        sheet = _laid(sheet, other * (field * strength), colour)
        return _laid(sheet, truth * (field * strength), colour)

    # --- the scanner ----------------------------------------------------------------------------------------------

    def _scanned(self, sheet: Floats) -> bytes:
        if self._often(0.4):
            sheet = sheet + self._chance.standard_normal(sheet.shape, np.float32) * self._some(0, 7)
        if self._often(0.3):
            sheet = (sheet - 128) * self._some(0.6, 1.1) + self._some(105, 135)
        picture = Image.fromarray(np.clip(sheet, 0, 255).astype(np.uint8))
        if self._often(0.55):
            picture = picture.filter(ImageFilter.GaussianBlur(self._some(0.2, 1.1)))
        if self._often(0.2):
            share = self._some(0.45, 0.8)
            small = (max(8, int(picture.width * share)), int(HEIGHT * share))
            picture = picture.resize(small, Image.Resampling.BILINEAR).resize(picture.size, Image.Resampling.BICUBIC)
        file = io.BytesIO()
        quality = int(self._some(12, 90))
        picture.save(file, "JPEG", quality=quality, subsampling=2 if self._often(0.75) else 0)
        return file.getvalue()


def draw_form(character: Bytes, others: Bytes, seed: int | list[int], odds: Odds = PLAIN) -> Crop:
    """One crop of a form with this character [64, 64], ink bright, and pieces of four others."""
    return Form(np.random.default_rng(seed), odds).write(character, others)


def _put(sheet: Bytes, piece: Bytes, x: int, y: int) -> None:
    """Ink laid over a sheet at this place; what lies outside is cut off."""
    high, wide = sheet.shape
    top, left, bottom, right = max(y, 0), max(x, 0), min(y + piece.shape[0], high), min(x + piece.shape[1], wide)
    if top < bottom and left < right:
        part = sheet[top:bottom, left:right]
        np.maximum(part, piece[top - y : bottom - y, left - x : right - x], out=part)


def _laid(sheet: Any, cover: Any, colour: Floats) -> Floats:
    """Colour laid over a sheet, as far as it covers."""
    return np.asarray(sheet + cover[..., None] * (colour - sheet), np.float32)
