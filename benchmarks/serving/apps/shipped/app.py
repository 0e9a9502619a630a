"""Ten milliseconds of work per item, and a list of every key that was computed; needs nothing but Timebound."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import timebound as tb

WORK_S = 0.010


class Once(tb.Model):
    """Doubles a number, slowly."""

    name = "once"
    deadline = 0.25
    key = "uuid"
    max_batch = 4
    example: ClassVar[Any] = {"uuid": "example", "n": 1}

    class Request(tb.Struct):
        uuid: str
        n: int
        retry: int = 0

    def load(self) -> None:
        folder = os.environ.get("BENCH_SEEN")
        # Appending, unbuffered: processes of two containers may have the same number, and killed ones lose nothing.
        self.seen = open(Path(folder) / str(os.getpid()), "ab", buffering=0) if folder else None  # noqa: SIM115

    def prepare(self, request: Any) -> Any:
        if self.seen is not None:
            self.seen.write(f"{request.uuid}\n".encode())
        return request.n

    def infer(self, batch: Any) -> Any:
        end = time.perf_counter() + WORK_S * len(batch)
        while time.perf_counter() < end:
            pass
        return [2 * n for n in batch]

    def finish(self, output: Any, request: Any) -> Any:
        return {"uuid": request.uuid, "twice": int(output)}

    def fallback(self, request: Any) -> Any:
        return {"uuid": request.uuid, "twice": None}
