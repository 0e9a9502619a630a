"""One model of each kind the page has controls for: text, raw bytes, a raw picture, and a picture in a field."""

import base64
import io
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from PIL import Image, ImageDraw

import timebound as tb


class Mood(tb.Model):
    """Counts good and bad words."""

    deadline = 20.0
    example = {"text": "What a good day"}  # noqa: RUF012 - read once, never changed
    samples = (
        {"title": "Praise", "body": {"text": "A good film with a good end"}},
        {"title": "Complaint", "body": {"text": "A bad film, bad to the end", "language": "en"}},
        {"title": "Nothing (refused)", "body": {"text": ""}},
    )

    class Request(tb.Struct):
        """Give a `text` of at most `max_words` words."""

        text: str
        language: Literal["en", "de"] = "en"
        max_words: Annotated[int, msgspec.Meta(ge=1, le=100, description="Longer texts are refused.")] = 50
        shout: bool = False
        tags: list[str] = msgspec.field(default_factory=list)

    def prepare(self, request: Request) -> list[str]:
        words = request.text.lower().replace(",", " ").split()
        if not words:
            raise tb.BadInput("the text is empty; write a few words", field="text")
        if len(words) > request.max_words:
            raise tb.BadInput(f"the text has {len(words)} words, more than max_words", field="text")
        return words

    def infer(self, batch: Any) -> Any:
        return [(1 + words.count("good")) / (2 + words.count("good") + words.count("bad")) for words in batch]

    def finish(self, share: float, request: Request) -> dict[str, Any]:
        label = "positive" if share > 0.5 else "neutral" if share == 0.5 else "negative"
        shown = label.upper() if request.shout else label
        return {"label": shown, "confidence": max(share, 1 - share), "scores": {"good": share, "bad": 1 - share}}


class Count(tb.Model):
    """Takes any bytes."""

    deadline = 20.0

    def infer(self, batch: Any) -> Any:
        return [{"bytes": len(body), "first": body[:1].hex()} for body in batch]


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Mirror(tb.Model):
    """Takes a picture as it is and gives one back."""

    deadline = 20.0
    accepts = "image/*"
    example = png(Image.new("L", (8, 8), 255))

    def prepare(self, request: bytes) -> Any:
        return tb.image.decode(request, mode="L", field=None)

    def infer(self, batch: Any) -> Any:
        return [png(Image.fromarray(picture[:, ::-1])) for picture in batch]


def signed(*lines: tuple[int, int, int, int]) -> str:
    """A drawing as base64."""
    picture = Image.new("L", (64, 64), 255)
    for line in lines:
        ImageDraw.Draw(picture).line(line, 0, 4)
    return base64.b64encode(png(picture)).decode()


ONE, TEN, TWO = (8, 32, 56, 32), (32, 8, 32, 56), (16, 20, 48, 20)


class Characters(tb.Model):
    """Tells three simple characters apart; its third member is easily fooled."""

    path = "/inference"
    deadline = 20.0
    key = "esun_uuid"
    example = {"esun_uuid": "e", "image": signed(ONE)}  # noqa: RUF012 - read once, never changed
    samples = (
        {"title": "one", "body": {"esun_uuid": "1", "image": signed(ONE)}},
        {"title": "two", "body": {"esun_uuid": "2", "image": signed(TWO, (8, 44, 56, 44))}},
        {"title": "ten", "body": {"esun_uuid": "3", "image": signed(ONE, TEN)}},
    )

    class Request(tb.Struct):
        esun_uuid: str
        image: tb.Image64
        retry: int = 0

    def load(self) -> None:
        self.net = tb.ensemble(
            lines, lines, lambda batch: lines(batch)[:, [0, 1, 1]] * [1, 0.9, 1], names=["a", "b", "c"]
        )

    def prepare(self, request: Request) -> Any:
        return tb.image.decode(request.image, size=(64, 64), mode="L") < 128

    def finish(self, scores: Any, request: Request) -> dict[str, Any]:
        answer = "一二十"[int(scores.argmax())]
        return {"esun_uuid": request.esun_uuid, "server_uuid": "5f0c", "server_timestamp": 1700000000, "answer": answer}


def lines(batch: Any) -> Any:
    """How much each drawing is a flat line, two of them, or a cross: by its height and by its middle column."""
    scores = []
    for ink in batch:
        rows = np.flatnonzero(ink.any(axis=1))
        is_high = len(rows) and rows[-1] - rows[0] > 12
        is_crossed = ink[rows[0] : rows[-1] + 1, 28:36].any(axis=1).all() if len(rows) else False
        scores.append([not is_high, is_high and not is_crossed, is_high and is_crossed])
    return np.array(scores, np.float32)
