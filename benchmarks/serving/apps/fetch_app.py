"""A model whose requests wait for the world as long as they say; nothing else takes time."""

import asyncio
from typing import Any, ClassVar

import timebound as tb


class Waits(tb.Model):
    """Waits, then says which request it was."""

    name = "waits"
    deadline = 2.0
    example: ClassVar[Any] = {"number": 0, "wait_s": 0.0}

    class Request(tb.Struct):
        number: int
        wait_s: float

    async def fetch(self, request: Any) -> Any:
        await asyncio.sleep(request.wait_s)
        return request

    def infer(self, batch: Any) -> Any:
        return [{"number": request.number} for request in batch]
