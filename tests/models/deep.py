"""Takes any JSON in a field, and follows it into every depth at the stage it is told to."""

from typing import Any

import timebound as tb


def depth(value: Any) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


class Deep(tb.Model):
    deadline = 20.0
    example = {"value": [1]}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: Any
        stage: str = "prepare"

    def prepare(self, request: Request) -> Any:
        return depth(request.value) if request.stage == "prepare" else request.value

    def infer(self, batch: Any) -> Any:
        return [item if isinstance(item, int) else 0 for item in batch]

    def finish(self, output: int, request: Request) -> dict[str, Any]:
        return {"depth": depth(request.value) if request.stage == "finish" else output}


class Answers(tb.Model):
    """Takes a number, gives that many bytes back."""

    deadline = 20.0
    example = b"1"

    def infer(self, batch: Any) -> Any:
        return [bytes(int(body)) for body in batch]
