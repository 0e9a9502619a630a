"""The demo model: a picture of one handwritten character in, the character out, by the mean of three networks."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import msgspec

import timebound as tb
from timebound.demo.picture import is_clean, read_picture
from timebound.demo.pieces import Ink

_HERE = Path(__file__).parent
SAMPLES: list[dict[str, str]] = json.loads((_HERE / "samples.json").read_text(encoding="utf-8"))
"""Pictures to try: `title`, and `image` as base64 PNG or, of crops of forms, JPEG."""
LABELS = [*(_HERE / "labels.txt").read_text(encoding="utf-8").split(), "isnull"]
"""The answers in the order of the networks' outputs: the 800 characters, and at last none of them."""

CLEAN_NONE, FORM_NONE = 0.6, 0.8
"""A picture is none of the 800 where the networks give that more than this share of one: it takes more on forms, where
neighbours and lines make characters look unlike any, and over 3 % of the 800 would be called `isnull` otherwise."""

_ANSWERS = msgspec.Meta(
    extra_json_schema={
        "x-answers": "".join(LABELS[:-1]),
        "x-named": {LABELS[-1]: f"none of the {len(LABELS) - 1}"},
        "x-fallback": "no time to read it",
    }
)
"""For the page: what it lists beside its board, and what it says in place of a bare `isnull` and of a fallback."""

FILES = ("models/mobile_slim.onnx", "models/mobile_wide.onnx", "models/lite.onnx")
"""Best alone on forms first, for the answers that time allows only one or two members."""


class Handwriting(tb.Model):
    """Reads one handwritten Traditional Chinese character of the 800 on a bank's form; anything else is `isnull`."""

    name = "handwriting"
    path = "/inference"
    deadline = 1.0
    key = "esun_uuid"
    key_ignore = ("retry", "esun_timestamp")
    keep_inputs = True
    example = {"esun_uuid": "example", "image": SAMPLES[0]["image"]}  # noqa: RUF012 - read once, never changed
    samples = tuple({"title": one["title"], "body": {"esun_uuid": "sample", "image": one["image"]}} for one in SAMPLES)

    class Request(tb.Struct):
        """One attempt to have one character read."""

        esun_uuid: str
        """Names the request; every attempt carries the same."""
        image: Annotated[tb.Image64, _ANSWERS]
        """Base64 of a picture of one character, in any size, dark on light or light on dark."""
        esun_timestamp: int = 0
        """When the attempt was sent, in seconds since 1970."""
        retry: int = 0
        """How many attempts are left."""

    def load(self) -> None:
        self.net = tb.ensemble(*(tb.onnx(_HERE / file) for file in FILES), combine="mean")

    def prepare(self, request: Request) -> Ink:
        return read_picture(tb.image.decode(request.image, mode="RGB"))[None]

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        best = int(output[:-1].argmax())
        character, sure, none = LABELS[best], round(float(output[best]), 4), round(float(output[-1]), 4)
        if _is_none(float(output[-1]), request.image):
            return _answer(request, "isnull", none, character, sure)
        return _answer(request, character, sure, character, sure)

    def fallback(self, request: Request) -> dict[str, Any]:
        return _answer(request, "isnull", 0.0, None, 0.0)


def _is_none(share: float, image: str) -> bool:
    """Whether that share says `isnull`. Only where it depends on the kind of picture that is found out again."""
    return share > FORM_NONE or (share > CLEAN_NONE and is_clean(tb.image.decode(image, mode="RGB")))


def _answer(
    request: Handwriting.Request, answer: str, confidence: float, character: str | None, sure: float
) -> dict[str, Any]:
    """What is said, and beside it the likeliest of the 800, whatever is said."""
    return {
        "esun_uuid": request.esun_uuid,
        "server_uuid": uuid.uuid4().hex,
        "server_timestamp": int(time.time()),
        "answer": answer,
        "confidence": confidence,
        "character": character,
        "character_confidence": sure,
    }
