"""The feeling of a post that lies at an address: its page is fetched first, and no slot waits for it.

python examples/sentiment/pages.py                      # invented posts, at http://127.0.0.1:8100/sample-01 and so on
timebound serve examples/sentiment/by_url.py
curl 'http://127.0.0.1:8000/inference?url=http://127.0.0.1:8100/sample-01'
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import msgspec

import timebound as tb
from posts import FEELINGS
from words import Ids, Words, words_of

MOST_BYTES = 4_000
"""Of a page: the network reads 128 pieces of words."""


class Page(tb.Struct):
    """What was found at an address."""

    url: str
    text: str


class ByUrl(tb.Model):
    """Reads the English post, a plain text, that lies at an address."""

    name = "by_url"
    path = "/inference"
    methods = ("GET", "POST")
    deadline = 2.0
    fetch_limit = 1.5
    example = {"url": "http://127.0.0.1:8100/sample-01"}  # noqa: RUF012 - read once, never changed
    example_fetched = Page("", "The new tram line is a dream")

    class Settings(tb.Struct):
        """`--set hosts=a.example,b.example`: whose pages are read. Nobody may send this server to any other."""

        hosts: str = "127.0.0.1,localhost"

    class Request(tb.Struct):
        """Where the post lies."""

        url: Annotated[str, msgspec.Meta(max_length=2000)]

    def equip(self) -> None:
        self.hosts = self.settings.hosts.split(",")
        self.http = httpx.AsyncClient()

    def load(self) -> None:
        self.words = Words.from_file(Path(__file__).parent / "vocabulary.txt")
        self.net = tb.onnx("sentiment.onnx")

    async def fetch(self, request: Request) -> Page:
        if urlsplit(request.url).hostname not in self.hosts:
            raise tb.BadInput(f"only pages of {', '.join(self.hosts)} are read", field="url")
        text = b""
        async with self.http.stream("GET", request.url) as page:
            if page.status_code != 200:
                raise tb.BadInput(f"the page was answered with {page.status_code}", field="url")
            async for part in page.aiter_bytes():
                text += part
                if len(text) > MOST_BYTES:
                    break
        return Page(request.url, text[:MOST_BYTES].decode(errors="replace"))

    def prepare(self, request: Page) -> Ids:
        if not words_of(request.text):
            raise tb.BadInput("the page has no word or sign that can be read", field="url")
        return self.words.ids(request.text)

    def infer(self, batch: Sequence[Ids]) -> Any:
        ids, _ = tb.text.pad(batch)
        return self.net(ids)

    def finish(self, output: Any, request: Page) -> dict[str, Any]:
        shares = {name: round(float(share), 4) for name, share in zip(FEELINGS, output, strict=True)}
        return {"url": request.url, "feeling": max(shares, key=shares.__getitem__), "probabilities": shares}

    def fallback(self, request: Request) -> dict[str, Any]:
        return {"url": request.url, "feeling": None, "probabilities": None}
