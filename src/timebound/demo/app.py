"""The demo model: a picture of one handwritten character in, the character out, by the mean of three networks."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

import timebound as tb

Ink = npt.NDArray[np.float32]

_HERE = Path(__file__).parent
SAMPLES: list[dict[str, str]] = json.loads((_HERE / "samples.json").read_text(encoding="utf-8"))
"""Pictures to try: `title`, and `image` as base64 PNG."""
LABELS = [*(_HERE / "labels.txt").read_text(encoding="utf-8").split(), "isnull"]
"""The 800 characters in the order of the networks' outputs; the last output means none of them."""

FILES = ("models/lite.onnx", "models/mobile_wide.onnx", "models/mobile_slim.onnx")
"""Best alone first, for the answers that time allows only one or two members."""


class Handwriting(tb.Model):
    """Reads one handwritten Traditional Chinese character of the 800 on a bank's form; anything else is `isnull`."""

    name = "handwriting"
    path = "/inference"
    deadline = 1.0
    key = "esun_uuid"
    key_ignore = ("retry", "esun_timestamp")
    example = {"esun_uuid": "example", "image": SAMPLES[0]["image"]}  # noqa: RUF012 - read once, never changed
    samples = tuple({"title": one["title"], "body": {"esun_uuid": "sample", "image": one["image"]}} for one in SAMPLES)

    class Request(tb.Struct):
        """One attempt to have one character read."""

        esun_uuid: str
        """Names the request; every attempt carries the same."""
        image: tb.Image64
        """Base64 of a picture of one character, in any size, dark on light or light on dark."""
        esun_timestamp: int = 0
        """When the attempt was sent, in seconds since 1970."""
        retry: int = 0
        """How many attempts are left."""

    def load(self) -> None:
        self.net = tb.ensemble(*(tb.onnx(_HERE / file) for file in FILES), combine="mean")

    def prepare(self, request: Request) -> Ink:
        return read_picture(tb.image.decode(request.image, mode="L"))[None]

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        best = int(output.argmax())
        return _answer(request, LABELS[best], round(float(output[best]), 4))

    def fallback(self, request: Request) -> dict[str, Any]:
        return _answer(request, "isnull", 0.0)


def _answer(request: Handwriting.Request, answer: str, confidence: float) -> dict[str, Any]:
    return {
        "esun_uuid": request.esun_uuid,
        "server_uuid": uuid.uuid4().hex,
        "server_timestamp": int(time.time()),
        "answer": answer,
        "confidence": confidence,
    }


# The networks were trained on ink that fills this share of a 64 x 64 frame.
_SIDE, _FILL = 64, 0.86
_INK = 0.35  # of the darkest: what counts as ink when the character is cut out
_FAINT = 24  # of 255: less contrast than this between paper and ink is an empty page


def read_picture(grey: npt.NDArray[np.uint8]) -> Ink:
    """A grey picture of any size to 64 x 64 ink, 0 (paper) to 1, cut out and centred; an empty page stays empty."""
    picture = Image.fromarray(grey)
    picture.thumbnail((256, 256), Image.Resampling.BOX)
    ink = _ink(np.asarray(picture, np.float32))
    rows, columns = (np.flatnonzero((ink > _INK).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return np.zeros((_SIDE, _SIDE), np.float32)
    return _fit(ink, rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)


def _ink(tone: Ink) -> Ink:
    """How far each pixel is from the paper, 0..1. The paper's tone is that of most of the border."""
    paper = np.median(np.concatenate([tone[0], tone[-1], tone[:, 0], tone[:, -1]]))
    darker, lighter = paper - tone.min(), tone.max() - paper
    contrast = max(darker, lighter)
    if contrast < _FAINT:
        return np.zeros_like(tone)
    ink = paper - tone if darker >= lighter else tone - paper
    return np.asarray(np.clip(ink / contrast, 0, 1), np.float32)


def _fit(ink: Ink, top: int, bottom: int, left: int, right: int) -> Ink:
    """The part that holds ink, scaled to the frame; what lies around it comes along, paper where the picture ends."""
    half = max(bottom - top, right - left) / _FILL / 2
    room = int(half) + 1
    x, y = (left + right) / 2 + room, (top + bottom) / 2 + room
    wide = Image.fromarray(np.pad(ink, room))
    # A small scan is enlarged here, and a softer filter would blur its strokes.
    frame = wide.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS, box=(x - half, y - half, x + half, y + half))
    return np.clip(np.asarray(frame, np.float32), 0, 1)  # the filter swings beyond both
