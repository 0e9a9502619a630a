"""Pictures from untrusted clients to arrays: bounded, and with errors that name the cause."""

from __future__ import annotations

import binascii
import io
import math
from typing import Any

import numpy as np
import pybase64
from PIL import Image, UnidentifiedImageError

from timebound.errors import BadInput

MAX_PIXELS = 16_000_000
"""Larger pictures are refused from their header, before anything is decoded."""

_FITS = ("stretch", "crop", "pad")
_SMOOTH = Image.Resampling.BILINEAR
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (_TURNS[5], _TURNS[6], _TURNS[7], _TURNS[8])

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def decode(
    data: str | bytes | bytearray | memoryview,
    *,
    size: tuple[int, int] | None = None,
    fit: str = "stretch",
    fill: int = 0,
    mode: str = "RGB",
    field: str | None = "image",
    max_pixels: int = MAX_PIXELS,
) -> Any:
    """Decode a picture to a uint8 array, height x width x channels ("L": height x width).

    `data` is base64 text (a `data:` URL works too) or the file's bytes; `size` is (width, height), reached by `fit`:
    "stretch", "crop" (the middle is kept) or "pad" (all is kept, with a border of `fill`). A photo that says how it
    was held is turned upright.
    """
    if fit not in _FITS:
        raise ValueError(f"decode(fit={fit!r}) is unknown; choose one of {', '.join(_FITS)}")
    raw = _from_base64(data, field) if isinstance(data, str) else bytes(data)
    if not raw:
        raise BadInput("the image is empty", field=field)
    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as picture:
            if picture.width * picture.height > max_pixels:
                raise BadInput(
                    f"the image has {picture.width} x {picture.height} pixels; at most {max_pixels} are taken",
                    field=field,
                )
            turn = _turn(picture)
            if size is not None:
                # A JPEG can be decoded at a half, a quarter or an eighth: the smallest that still has all pixels.
                picture.draft(mode, _before(picture.size, size if turn not in _SIDEWAYS else size[::-1], fit))
            converted = _on_white(picture).convert(mode)
    except BadInput:
        raise
    except Image.DecompressionBombError:
        raise BadInput(f"the image is too large; at most {max_pixels} pixels are taken", field=field) from None
    except UnidentifiedImageError:
        raise BadInput("the image is not a PNG, JPEG, WebP, BMP or GIF", field=field) from None
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more on broken files.
        raise BadInput(f"the image is broken or cut off ({error})", field=field) from None
    if turn is not None:
        converted = converted.transpose(turn)
    return np.asarray(converted if size is None else _resize(converted, size, fit, fill))


def _turn(picture: Image.Image) -> Image.Transpose | None:
    """What puts a photo upright that was taken with the camera held another way (the EXIF orientation)."""
    if "exif" not in picture.info:
        return None
    try:
        return _TURNS.get(picture.getexif().get(0x0112, 1))
    except Exception:  # the pixels may be fine all the same
        return None


def _before(given: tuple[int, int], size: tuple[int, int], fit: str) -> tuple[int, int]:
    """The size that the whole picture must have for what is kept of it to have `size`."""
    if fit == "stretch":
        return size
    scale = (max if fit == "crop" else min)(size[0] / given[0], size[1] / given[1])
    return math.ceil(given[0] * scale), math.ceil(given[1] * scale)


def _resize(picture: Image.Image, size: tuple[int, int], fit: str, fill: int) -> Image.Image:
    if picture.size == size:
        return picture
    wide, high = picture.size
    if fit == "crop":
        scale = min(wide / size[0], high / size[1])
        left, top = (wide - size[0] * scale) / 2, (high - size[1] * scale) / 2
        return picture.resize(size, _SMOOTH, box=(left, top, wide - left, high - top))
    if fit == "stretch":
        return picture.resize(size, _SMOOTH)
    scale = min(size[0] / wide, size[1] / high)
    inner = max(1, min(size[0], round(wide * scale))), max(1, min(size[1], round(high * scale)))
    paper = Image.new(picture.mode, size, fill if picture.mode == "L" else (fill,) * len(picture.getbands()))
    paper.paste(picture.resize(inner, _SMOOTH), ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return paper


def _on_white(picture: Image.Image) -> Image.Image:
    """A drawing with transparent paper reads as it looks: on white."""
    if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
        return picture
    drawn = picture.convert("RGBA")
    paper = Image.new("RGBA", drawn.size, "white")
    return Image.alpha_composite(paper, drawn)


def _from_base64(text: str, field: str | None) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the image is not valid base64", field=field) from None
