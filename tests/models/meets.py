"""Runs two batches at once in one process: requests that want to meet wait for each other inside `infer`."""

import fcntl
import threading
from typing import Any

import timebound as tb


class Meets(tb.Model):
    deadline = 50.0
    parallel = True
    max_batch = 1
    example = {"meet": False}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        meet: bool = False
        gate: str = ""

    def load(self) -> None:
        self.table = threading.Barrier(2, timeout=20)

    def infer(self, batch: Any) -> Any:
        for request in batch:
            if request.meet:
                self.table.wait()
            if request.gate:
                with open(request.gate) as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
        return [threading.current_thread().name for _ in batch]
