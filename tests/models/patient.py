"""Slow in honest ways: the first batch of each size takes long in each worker; a request may ask for its own time."""

import os
import time
from typing import Any

import timebound as tb

FIRST_S = float(os.environ.get("FIRST_S", "0"))
LOAD_S = float(os.environ.get("LOAD_S", "0"))


class Patient(tb.Model):
    deadline = 1.0
    max_batch = 8

    class Request(tb.Struct):
        value: int
        takes_s: float = 0.005

    def load(self) -> None:
        time.sleep(LOAD_S)
        self.met: set[int] = set()

    def infer(self, batch: Any) -> Any:
        if len(batch) not in self.met:
            time.sleep(FIRST_S)
            self.met.add(len(batch))
        time.sleep(max(request.takes_s for request in batch))
        return [request.value for request in batch]

    def fallback(self, request: Any) -> int:
        return -1
