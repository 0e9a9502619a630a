"""Two models that say how light a picture is: one gets it as it is, the other in a field as base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from io import BytesIO
from typing import Any, ClassVar

from PIL import Image

import timebound as tb


def grey(light: int) -> bytes:
    """A small picture, all of one grey."""
    file = BytesIO()
    Image.new("L", (16, 16), light).save(file, "PNG")
    return file.getvalue()


class Light(tb.Model):
    """The nearer to the middle, the less sure."""

    accepts: ClassVar[str | None] = "image/*"
    keep_inputs = True
    deadline = 5.0
    example: ClassVar[Any] = grey(7)

    def prepare(self, request: bytes) -> float:
        with Image.open(BytesIO(request)) as picture:
            return float(picture.convert("L").getpixel((0, 0))) / 255  # type: ignore[arg-type]

    def infer(self, batch: Any) -> Any:
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        light = float(output)
        return {"label": "light" if light > 0.5 else "dark", "confidence": round(max(light, 1 - light), 3)}


class Light64(Light):
    accepts = None
    example: ClassVar[Any] = {"picture": b64encode(grey(7)).decode()}

    class Request(tb.Struct):
        picture: tb.Image64

    def prepare(self, request: Any) -> float:
        return super().prepare(b64decode(request.picture))
