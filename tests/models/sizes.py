"""A model that says how large its requests are, by a method of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import timebound as tb


class Sizes(tb.Model):
    example: ClassVar[Any] = {"text": "abc"}
    deadline = 5.0

    class Request(tb.Struct):
        text: str

    def size(self, request: Any) -> float:
        if request.text == "raise":
            raise RuntimeError("cannot say")
        return len(request.text)

    def infer(self, batch: Any) -> Any:
        longest = max(len(request.text) for request in batch)
        return [longest for _ in batch]

    def finish(self, output: Any, request: Any) -> Any:
        return {"length": len(request.text), "padded_to": output}
