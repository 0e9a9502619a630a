"""Classes that are asked with tensors: typed fields of every kind, a raw body, and one that takes its time."""

import time
from typing import Any

import timebound as tb


class Kinds(tb.Model):
    """Says again what it was asked."""

    deadline = 20.0
    key = "id"
    max_batch = 16
    example = {"text": "a", "number": 0.5, "counts": [1, 2]}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        text: str
        number: float
        counts: list[int]
        id: str = ""
        flag: bool = False
        raw: bytes = b""
        more: Any = None
        temperature: float = 1.0
        retry: int = 0

    def prepare(self, request: Request) -> str:
        if request.text == "bad":
            raise tb.BadInput("that is a bad word", field="text")
        return request.text.upper()

    def infer(self, batch: Any) -> Any:
        return list(batch)

    def finish(self, output: str, request: Request) -> dict[str, Any]:
        return {
            "text": output,
            "number": request.number * request.temperature,
            "counts": request.counts,
            "flag": request.flag,
            "raw": request.raw,
            "more": request.more,
        }


class Named(tb.Model):
    """Wants every request named."""

    deadline = 20.0
    key = "id"
    example = {"id": "a", "text": "a"}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        id: str
        text: str

    def prepare(self, request: Request) -> str:
        return request.text

    def infer(self, batch: Any) -> Any:
        return list(batch)

    def finish(self, output: str, request: Request) -> dict[str, Any]:
        return {"id": request.id, "text": output}


class Raw(tb.Model):
    """Turns bytes round, or says how many there are."""

    deadline = 20.0

    def infer(self, batch: Any) -> Any:
        return list(batch)

    def finish(self, output: bytes, request: bytes) -> Any:
        return {"bytes": len(output)} if output.startswith(b"count") else output[::-1]


class Slow(tb.Model):
    """Takes a second; has nothing cheaper to give."""

    deadline = 20.0
    example = {"seconds": 0.0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        seconds: float

    def prepare(self, request: Request) -> float:
        if not 0 <= request.seconds <= 2:
            raise tb.BadInput("give 0 to 2", field="seconds")
        return request.seconds

    def infer(self, batch: Any) -> Any:
        time.sleep(max(batch))
        return list(batch)
