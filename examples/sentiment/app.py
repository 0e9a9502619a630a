"""The feeling of a short post: negative, neutral or positive; kept for 60 days under the post's id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

import timebound as tb
from posts import FEELINGS
from words import Ids, Words, hashtags_of, words_of

POSTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "samples.json").read_text(encoding="utf-8"))
"""Invented ones, to try."""

Short = Annotated[str, msgspec.Meta(max_length=200)]


class Sentiment(tb.Model):
    """Reads English posts of up to 1,000 characters; what comes after 128 pieces of words is not read."""

    name = "sentiment"
    deadline = 0.5
    key = "id"
    keep = 60 * 86400.0  # seconds: the reports look back two months
    size = "text"
    example = POSTS[0]
    samples = [{"title": post["text"], "body": post} for post in POSTS]  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        """A post. All but `text` is optional and comes back with the answer."""

        text: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
        id: Short | None = None
        """Names the post: sent again, it is answered from the store, and its result can be read back by this."""
        user: Short | None = None
        time: Short | None = None
        """When it was written, as 2026-03-02T08:15 (UTC) or 2026-03-02T08:15+02:00; the reports sort by it."""
        topic: Short | None = None
        """What it is about, besides its hashtags."""

    def load(self) -> None:
        self.words = Words.from_file(Path(__file__).parent / "vocabulary.txt")
        self.net = tb.onnx("sentiment.onnx")

    def prepare(self, request: Request) -> Ids:
        if not words_of(request.text):
            raise tb.BadInput(
                "text has no word or sign that can be read; send the post as it was written", field="text"
            )
        _check_time(request.time)
        return self.words.ids(request.text)

    def infer(self, batch: Sequence[Ids]) -> Any:
        ids, _ = tb.text.pad(batch)  # the network knows padding by its number, 0
        return self.net(ids)

    def finish(self, output: Any, request: Request) -> dict[str, Any]:
        feeling = FEELINGS[int(output.argmax())]
        shares = {name: round(float(share), 4) for name, share in zip(FEELINGS, output, strict=True)}
        return {"feeling": feeling, "probabilities": shares, **about(request)}

    def fallback(self, request: Request) -> dict[str, Any]:
        return {"feeling": None, "probabilities": None, **about(request)}


def _check_time(time: str | None) -> None:
    try:
        when = datetime.fromisoformat(time) if time is not None else None
        if when is not None and when.tzinfo is not None:
            when.astimezone(UTC)  # which the first and the last hours of all may not have
    except (ValueError, OverflowError):
        raise tb.BadInput("time cannot be read; send it as 2026-03-02T08:15, or leave it out", field="time") from None


def about(request: Sentiment.Request) -> dict[str, Any]:
    """What the reports need to know of a post. Its text is not kept."""
    topics = [request.topic.lower()] if request.topic else []
    topics += hashtags_of(request.text)
    return {"id": request.id, "user": request.user, "time": request.time, "topics": list(dict.fromkeys(topics))}
