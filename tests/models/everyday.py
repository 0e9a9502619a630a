"""Models that use what everyday services use: one small one per thing."""

from __future__ import annotations

from typing import Any, ClassVar

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


class Mood(tb.Model):
    example: ClassVar = {"text": "fine"}

    class Request(tb.Struct):
        text: str

    class Answer(tb.Struct):
        label: str
        letters: int

    def infer(self, batch: list[Request]) -> list[Any]:
        return [{"label": "good", "letters": len(request.text)} for request in batch]
