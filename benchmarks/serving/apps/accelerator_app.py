"""A model that waits, as the processor does for an accelerator: 20 ms for each batch and 1 ms for each item."""

import time
from typing import Any, ClassVar

import timebound as tb

BATCH_S, ITEM_S = 0.020, 0.001


class Accelerator(tb.Model):
    """Answers with the number it was asked, after a while."""

    name = "accelerator"
    deadline = 0.25
    parallel = True  # waiting releases the interpreter lock
    example: ClassVar[Any] = {"value": 1}

    class Request(tb.Struct):
        value: int

    def infer(self, batch: Any) -> Any:
        time.sleep(BATCH_S + ITEM_S * len(batch))
        return [request.value for request in batch]
