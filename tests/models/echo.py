"""Answers with what it was asked, at a route of its own, by a key."""

from typing import Any

import timebound as tb


class Echo(tb.Model):
    path = "/inference"
    key = "id"
    deadline = 20.0
    example = {"value": 1}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: int
        id: str | None = None

    def prepare(self, request: Request) -> int:
        return request.value

    def infer(self, batch: Any) -> Any:
        return batch

    def finish(self, output: int, request: Request) -> dict[str, Any]:
        return {"value": output, "id": request.id}
