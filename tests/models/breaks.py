"""Does to its worker what a request says: dies, hangs, leaks, runs out of memory, or stands still at a gate."""

import ctypes
import fcntl
import os
import signal
import sys
import time
from typing import Any

import timebound as tb

leaked: list[bytearray] = []


class Breaks(tb.Model):
    deadline = 20.0
    parallel = True
    example = {"value": 0}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        value: int
        harm: str = ""
        gate: str = ""

    def infer(self, batch: Any) -> Any:
        for request in batch:
            if request.gate:
                with open(request.gate) as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
        for request in batch:
            if request.harm == "crash":
                ctypes.string_at(0)
            elif request.harm == "exit":
                os._exit(3)
            elif request.harm == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif request.harm == "hang":
                time.sleep(600)
            elif request.harm == "memory" and len(batch) > 1:  # the scheduler may well choose pairs
                raise MemoryError
            elif request.harm == "fork":
                if not os.fork():
                    sys.exit(0)
            elif request.harm == "leak":
                leaked.append(bytearray(b"x" * 150_000_000))
        return [request.value for request in batch]
