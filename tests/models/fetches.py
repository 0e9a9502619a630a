"""A model whose requests wait for the world first: the body says how long, and what comes of it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import timebound as tb


class Fetches(tb.Model):
    deadline = 2.0
    key = "id"
    methods = ("GET", "POST")
    example = {"wait": 0.0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        wait: float = 0.0
        what: str = ""
        id: str = ""
        log: str = ""
        page: bytes = b""

    async def fetch(self, request: Request) -> Request:
        note(request, "begun")
        try:
            await asyncio.sleep(request.wait)
        except asyncio.CancelledError:
            note(request, "called off")
            raise
        if request.what == "bad":
            raise tb.BadInput("there is no such page", field="what")
        if request.what == "broken":
            raise ConnectionError("nobody is there")
        if request.what == "holds up":
            time.sleep(60)  # as no fetch should
        if request.what == "exits beside":
            await asyncio.create_task(leave())
        if request.what == "ends it":
            os._exit(3)
        request.page = b"page of " + request.what.encode()
        return request

    def infer(self, batch: list[Fetches.Request]) -> list[bytes]:
        return [request.page for request in batch]

    def finish(self, output: bytes, request: Request) -> dict[str, Any]:
        return {"page": output.decode(), "wait": request.wait}


async def leave() -> None:
    raise SystemExit(4)


def note(request: Fetches.Request, word: str) -> None:
    if request.log:
        with Path(request.log).open("a") as file:
            file.write(f"{word}\n")
