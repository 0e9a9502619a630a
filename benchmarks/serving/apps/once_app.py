"""Ten milliseconds of work per item, counted: every key that is computed is written down."""

import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.tools.seen import Seen

WORK_S = 0.010
# Names how long a batch takes in all, whatever its size, in place of the time per item.
BATCH_ENV = "ONCE_BATCH_S"


class Once(tb.Model):
    """Doubles a number, slowly."""

    name = "once"
    deadline = 5.0 if BATCH_ENV in os.environ else 0.25
    key = "uuid"
    max_batch = 128 if BATCH_ENV in os.environ else 4
    example: ClassVar[Any] = {"uuid": "example", "n": 1}

    class Request(tb.Struct):
        uuid: str
        n: int
        retry: int = 0

    def load(self) -> None:
        self.seen = Seen()

    def prepare(self, request: Any) -> Any:
        self.seen.add(request.uuid)
        return request.n

    def infer(self, batch: Any) -> Any:
        end = time.perf_counter() + float(os.environ.get(BATCH_ENV, WORK_S * len(batch)))
        while time.perf_counter() < end:
            pass
        return [2 * n for n in batch]

    def finish(self, output: Any, request: Any) -> Any:
        return {"uuid": request.uuid, "twice": int(output)}

    def fallback(self, request: Any) -> Any:
        return {"uuid": request.uuid, "twice": None}
