"""The demo model: a drawing of a digit in, the digit out, by the mean of three members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

import timebound as tb

Ink = npt.NDArray[np.float32]

SAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "samples.json").read_text())
"""One held-out drawing per digit: `label`, and `image` as base64 PNG."""


class Digits(tb.Model):
    """Reads one handwritten digit, drawn in any size, dark on light or light on dark."""

    name = "digits"
    deadline = 1.0
    key = "id"
    example = {"image": SAMPLES[3]["image"]}  # noqa: RUF012 - read once, never changed
    samples = tuple({"title": str(one["label"]), "body": {"image": one["image"]}} for one in SAMPLES)

    class Request(tb.Struct):
        """Give `image` or `pixels`, not both."""

        image: tb.Image64 | None = None
        """Base64 of a PNG or JPEG of any size."""
        pixels: list[list[float]] | None = None
        """Eight rows of eight numbers, 0 (paper) to 16 (ink)."""
        id: str | None = None
        """Names the request: sent again with the same id, it is answered again but not computed again."""

    def load(self) -> None:
        # Best alone first, for the answers that time allows only one or two members.
        files = ("models/conv.onnx", "models/mlp.onnx", "models/rbf.onnx")
        self.net = tb.ensemble(*(tb.onnx(file) for file in files), combine="mean")

    def prepare(self, request: Request) -> Ink:
        if request.image is not None and request.pixels is not None:
            raise tb.BadInput("image and pixels are both given; send only one of them", field="pixels")
        if request.image is not None:
            return read_drawing(tb.image.decode(request.image, mode="L"))[None]
        if request.pixels is not None:
            return read_pixels(request.pixels)[None]
        raise tb.BadInput("no digit given; send image (base64 of a PNG or JPEG) or pixels (8 x 8)", field="image")

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        digit = int(output.argmax())
        shares = [round(float(share), 4) for share in output]
        return {"digit": digit, "confidence": shares[digit], "probabilities": shares}

    def fallback(self, request: Request) -> dict[str, Any]:
        return {"digit": None, "confidence": 0.0, "probabilities": [0.1] * 10}


def read_pixels(rows: list[list[float]]) -> Ink:
    """Eight rows of eight, 0..16, to ink 0..1; anything else is bad input."""
    if len(rows) != 8 or any(len(row) != 8 for row in rows):
        raise tb.BadInput("pixels must be 8 rows of 8 numbers", field="pixels")
    ink = np.array(rows, np.float32)
    if not (ink.min() >= 0 and ink.max() <= 16):
        raise tb.BadInput("pixels must lie between 0 (paper) and 16 (ink)", field="pixels")
    return ink / np.float32(16)


# The dataset was made from scanned digits so: cut out, scaled to the full height of a 32 x 32 bitmap, seldom wider than
# 24, and counted in 4 x 4 blocks. What is drawn with a mouse goes the same way, and is thickened first,
# because there ink covers 30 percent of the square whatever the digit (0.305 on average, below 0.26 for one in ten).
_SIDE, _WIDEST, _COVERED = 32, 22, 0.28
_FAINT = 40  # of 255: less contrast than this between paper and ink is an empty page


def read_drawing(grey: npt.NDArray[np.uint8]) -> Ink:
    """A grey picture of one digit to 8 x 8 ink, 0..1, in the style of the dataset."""
    digit = _cut_out(_ink(grey))
    frame = _fit(digit)
    for _ in range(16):
        if frame.mean() >= _COVERED:
            break
        digit = _thicker(digit)
        frame = _fit(digit)
    blocks: Ink = frame.reshape(8, 4, 8, 4).mean(axis=(1, 3), dtype=np.float32)
    return blocks


def _ink(grey: npt.NDArray[np.uint8]) -> Ink:
    """How far each pixel is from the paper, 0..1. The paper's tone is that of most of the border."""
    picture = Image.fromarray(grey)
    picture.thumbnail((256, 256), Image.Resampling.BOX)
    tone = np.asarray(picture, np.float32)
    paper = np.median(np.concatenate([tone[0], tone[-1], tone[:, 0], tone[:, -1]]))
    darker, lighter = paper - tone.min(), tone.max() - paper
    contrast = max(darker, lighter)
    if contrast < _FAINT:
        raise tb.BadInput("the drawing is empty; draw one digit, dark on light or light on dark", field="image")
    ink = paper - tone if darker >= lighter else tone - paper
    return np.asarray(np.clip(ink / contrast, 0, 1), np.float32)


def _cut_out(ink: Ink) -> Image.Image:
    """The part that holds ink, at twice the height of the bitmap so that thickening goes in small steps."""
    rows, columns = (np.flatnonzero((ink > 0.25).any(axis=axis)) for axis in (1, 0))
    part = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    high, wide = part.shape
    picture = Image.fromarray((part * 255).astype(np.uint8))
    return picture.resize(
        (max(1, min(4 * _SIDE, round(wide * 2 * _SIDE / high))), 2 * _SIDE), Image.Resampling.BILINEAR
    )


def _thicker(digit: Image.Image) -> Image.Image:
    """Every stroke one pixel wider to each side."""
    room = Image.new("L", (digit.width + 2, digit.height + 2))
    room.paste(digit, (1, 1))
    return room.filter(ImageFilter.MaxFilter(3))


def _fit(digit: Image.Image) -> Ink:
    """The digit in the middle of the bitmap: full height, its own proportions unless that is too wide."""
    wide = max(1, min(_WIDEST, round(digit.width * _SIDE / digit.height)))
    frame = np.zeros((_SIDE, _SIDE), np.float32)
    left = (_SIDE - wide) // 2
    scaled = digit.resize((wide, _SIDE), Image.Resampling.BOX)
    frame[:, left : left + wide] = np.asarray(scaled, np.float32) / 255
    return frame
