"""Pictures from untrusted clients to arrays: bounded, and with errors that name the cause."""

from __future__ import annotations

import binascii
import io
import math
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pybase64
from PIL import Image, ImageOps, UnidentifiedImageError

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

_MOST_SCANS = 100  # encoders write about ten; each one costs a walk over all pixels
_MOST_PARTS = 1000  # of a JPEG's head, which Pillow reads in Python; large profiles take some hundred
_WIDEST_GAP = 1000  # bytes between two parts, which Pillow skips one by one
_JPEG, _SCAN, _END = b"\xff\xd8\xff", b"\xda", b"\xd9"
_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd8\xff])", re.S)  # those left out have no length and begin nothing
_URL_SAFE = str.maketrans("-_", "+/")


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
    if raw.startswith(_JPEG):
        _check_jpeg(raw, field)
    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as picture:
            if picture.width * picture.height > max_pixels:
                raise BadInput(
                    f"the image has {picture.width} x {picture.height} pixels; at most {max_pixels} are taken",
                    field=field,
                )
            if picture.format == "BMP" and picture.info.get("compression") in (1, 2):
                # Pillow unpacks runs in Python, a second for a few megabytes.
                raise BadInput("the image is a BMP with run-length compression; send it as PNG", field=field)
            turn = _turn(picture)
            if size is not None:
                # A JPEG can be decoded at a half, a quarter or an eighth: the smallest that still has all pixels.
                picture.draft(mode, _before(picture.size, size if turn not in _SIDEWAYS else size[::-1], fit))
            converted = _on_white(_in_eight_bits(picture)).convert(mode)
    except BadInput:
        raise
    except Image.DecompressionBombError:
        raise BadInput(f"the image is too large; at most {max_pixels} pixels are taken", field=field) from None
    except UnidentifiedImageError:
        if raw.startswith(b"--") and b"form-data" in raw[:1000]:  # curl -F
            raise BadInput("the body is a form; send the picture's bytes alone (curl --data-binary @FILE)") from None
        raise BadInput("the image is not a PNG, JPEG, WebP, BMP or GIF", field=field) from None
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more on broken files.
        raise BadInput(f"the image is broken or cut off ({error})", field=field) from None
    if turn is not None:
        converted = converted.transpose(turn)
    return np.asarray(converted if size is None else _resize(converted, size, fit, fill))


def _check_jpeg(raw: bytes, field: str | None) -> None:
    """Refuse a JPEG that takes far longer to read than its pixels do: by thousands of scans, parts or stray bytes."""
    at, scans = 2, 0
    for _ in range(_MOST_PARTS):
        found = _MARKER.search(raw, at, len(raw) if scans else at + _WIDEST_GAP)
        if found is None and not scans:
            raise BadInput("the image is broken or cut off (no picture follows its head)", field=field)
        if found is None or found[1] == _END:
            return
        if found[1] == _SCAN:
            scans += 1
            # Counting is quick but takes what follows the picture for scans too, such as a phone's short film.
            if scans == 1 and raw.count(b"\xff" + _SCAN, at) <= _MOST_SCANS:
                return
            if scans > _MOST_SCANS:
                break
        at = found.end() + int.from_bytes(raw[found.end() : found.end() + 2], "big")
    raise BadInput(
        f"the image is a JPEG of more than {_MOST_SCANS} scans or {_MOST_PARTS} parts; save it anew", field=field
    )


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
        return ImageOps.fit(picture, size, _SMOOTH)
    if fit == "stretch":
        return picture.resize(size, _SMOOTH)
    scale = min(size[0] / wide, size[1] / high)
    inner = max(1, min(size[0], round(wide * scale))), max(1, min(size[1], round(high * scale)))
    paper = Image.new(picture.mode, size, fill if picture.mode == "L" else (fill,) * len(picture.getbands()))
    paper.paste(picture.resize(inner, _SMOOTH), ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return paper


def _in_eight_bits(picture: Image.Image) -> Image.Image:
    """Sixteen bits of grey as eight: Pillow itself would make all above 255 white."""
    if not picture.mode.startswith("I"):
        return picture
    grey = np.array(picture)
    if "transparency" in picture.info:
        grey[grey == picture.info["transparency"]] = 65535  # on white, as below
    return Image.fromarray((grey >> 8).astype(np.uint8))


def _on_white(picture: Image.Image) -> Image.Image:
    """A drawing with transparent paper reads as it looks: on white."""
    if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
        return picture
    drawn = picture.convert("RGBA")
    paper = Image.new("RGBA", drawn.size, "white")
    return Image.alpha_composite(paper, drawn)


def _from_base64(text: str, field: str | None) -> bytes:
    """Base64 as it should be, or as other tools write it: in lines, with the letters of URLs, without the padding."""
    if text[:5].lower() == "data:":
        text = text.partition(",")[2]
    with suppress(binascii.Error, ValueError):
        return pybase64.b64decode(text, validate=True)
    bare = "".join(text.split()).translate(_URL_SAFE)
    try:
        return pybase64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the image is not valid base64", field=field) from None
