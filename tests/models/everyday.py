"""Models that use what everyday services use: one small one per thing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, Field

import timebound as tb


class Card(tb.Model):
    """Draws a card."""

    example: ClassVar = {"name": "you"}
    key = "id"

    class Request(tb.Struct):
        name: str
        id: str = ""

    def infer(self, batch: list[Any]) -> list[Any]:
        return batch

    def finish(self, output: Any, request: Request) -> tb.Reply:
        card = f"<svg>{request.name}</svg>".encode()
        return tb.Reply(card, media="image/svg+xml", headers={"Content-Disposition": 'inline; filename="card.svg"'})


class Plain(tb.Model):
    """Says back what its JSON says."""

    json = True
    example: ClassVar = {"words": ["a"]}

    def infer(self, batch: list[Any]) -> list[Any]:
        return batch


class Photo(tb.Model):
    """Says what came of a form."""

    methods = ("GET", "POST")
    key = "id"
    example: ClassVar = {"image": "AA=="}

    class Request(tb.Struct):
        image: tb.Image64 = ""
        count: int = 1
        sharp: bool = False
        tags: list[str] = []  # noqa: RUF012 # a Struct makes a new one for each
        title: str | None = None
        id: str = ""

    def infer(self, batch: list[Request]) -> list[Any]:
        return batch

    def finish(self, output: Any, request: Request) -> Any:
        size = len(base64.b64decode(request.image))
        return {"size": size, "count": request.count, "sharp": request.sharp, "tags": request.tags}


class Bytes(tb.Model):
    def infer(self, batch: list[bytes]) -> list[Any]:
        return [{"size": len(body), "first": body[:4].decode("latin-1")} for body in batch]


@dataclass
class Point:
    x: int
    y: int = 0


class Lax(tb.Model):
    lax = True
    Request = Point
    example: ClassVar = {"x": 1}

    def infer(self, batch: list[Point]) -> list[Any]:
        return [{"x": point.x, "y": point.y} for point in batch]


class Order(BaseModel):
    count: int = Field(ge=1)
    note: str = Field("", alias="remark")


class Ordered(tb.Model):
    Request = Order
    example: ClassVar = {"count": 1}

    def infer(self, batch: list[Order]) -> list[Any]:
        return [{"count": order.count, "note": order.note} for order in batch]


class Mood(tb.Model):
    example: ClassVar = {"text": "fine"}

    class Request(tb.Struct):
        text: str

    class Answer(tb.Struct):
        label: str
        letters: int

    def infer(self, batch: list[Request]) -> list[Any]:
        return [{"label": "good", "letters": len(request.text)} for request in batch]
