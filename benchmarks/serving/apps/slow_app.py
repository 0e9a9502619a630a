"""A model that takes 40 ms for a batch of up to 4, and has a fallback."""

import time
from typing import Any, ClassVar

import timebound as tb

_SECONDS = 0.04


class Slow(tb.Model):
    """Gives back what it gets."""

    deadline = 0.25
    max_batch = 4
    parallel = True
    example: ClassVar[Any] = {"value": 1}

    class Request(tb.Struct):
        value: int

    def prepare(self, request: Any) -> Any:
        return request.value

    def infer(self, batch: Any) -> Any:
        time.sleep(_SECONDS)
        return batch

    def finish(self, output: Any, request: Any) -> Any:
        return {"value": output}

    def fallback(self, request: Any) -> Any:
        return {"value": 0}
