"""A model that takes a known time by sleeping, and does harm to its worker when a request says so.

It is slow in honest ways too: at the first batch of each size in a process, and with a request that says so.

Each answer tells the batch it was computed in, as the worker saw it, and which release of this file did each step.
"""

import ctypes
import os
import time
from itertools import count
from typing import Any, ClassVar

import timebound as tb

BATCH_S = 0.010
ITEM_S = 0.010
MAX_BATCH = 8
DEADLINE_S = 1.0
HOG_BYTES = 200_000_000
FIRST_S = float(os.environ.get("CHAOS_FIRST_S", "0.15"))
SLOW_S = 1.2
RELEASE = 1  # a reload finds another number here
PROCESS = os.urandom(6).hex()
BATCHES = count(1)


class Chaos(tb.Model):
    """Seven times the number, and three."""

    name = "chaos"
    version = str(RELEASE)
    deadline = DEADLINE_S
    max_batch = MAX_BATCH
    example: ClassVar[Any] = {"n": 1}

    class Request(tb.Struct):
        n: int
        harm: str = ""
        salt: int = 0

    def load(self) -> None:
        self.kept: list[bytearray] = []
        self.met = {1}

    def prepare(self, request: Any) -> Any:
        return request, RELEASE

    def infer(self, batch: Any) -> Any:
        items = list(zip(*batch, strict=True)) if isinstance(batch, tuple) else batch
        if len(items) not in self.met:
            self.met.add(len(items))
            time.sleep(FIRST_S)
        time.sleep(BATCH_S + ITEM_S * len(items))
        for request, _ in items:
            self.suffer(request.harm)
        batch = f"{PROCESS}-{next(BATCHES)}"
        return [(7 * request.n + 3, batch, len(items), int(prepared_by), RELEASE) for request, prepared_by in items]

    def suffer(self, harm: str) -> None:
        if harm == "crash":
            ctypes.string_at(0)
        elif harm == "hang":
            time.sleep(600)
        elif harm == "slow":
            time.sleep(SLOW_S)
        elif harm == "hog":  # never given back
            self.kept.append(bytearray(b"x" * HOG_BYTES))

    def finish(self, output: Any, request: Any) -> Any:
        answer, batch, size, *releases = output
        return {"n": request.n, "answer": answer, "batch": batch, "size": size, "releases": [*releases, RELEASE]}

    def fallback(self, request: Any) -> Any:
        return {"n": request.n, "answer": None}
