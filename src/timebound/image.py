"""Pictures from untrusted clients to arrays: bounded, and with errors that name the cause."""

from __future__ import annotations

import binascii
import io
from typing import Any

import numpy as np
import pybase64
from PIL import Image, UnidentifiedImageError

from timebound.errors import BadInput

MAX_PIXELS = 16_000_000
"""Larger pictures are refused from their header, before anything is decoded."""

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def decode(
    data: str | bytes | bytearray | memoryview,
    *,
    size: tuple[int, int] | None = None,
    mode: str = "RGB",
    field: str | None = "image",
    max_pixels: int = MAX_PIXELS,
) -> Any:
    """Decode a picture to a uint8 array, height x width x channels ("L": height x width).

    `data` is base64 text (a `data:` URL works too) or the file's bytes; `size` is (width, height).
    """
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
            if size is not None:
                picture.draft(mode, size)
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
    if size is not None and converted.size != size:
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(converted)


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
