"""A model whose preparation is worth handing over, and says in which process it ran; some bodies end or hold it up."""

import fcntl
import os
import signal
import threading
import time
from typing import Any, ClassVar

import numpy as np

import timebound as tb


class Handed(tb.Model):
    path = "/handed"
    deadline = 2.0
    max_batch = 32
    example: ClassVar[Any] = {"n": 1}

    class Request(tb.Struct):
        n: float
        doing: str = ""
        gate: str = ""

    def equip(self) -> None:
        self.one = 1.0

    def load(self) -> None:
        self.weight = 2.0

    def prepare(self, request: Any) -> Any:
        if request.gate:
            with open(request.gate) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        if request.doing == "fork" and not os.fork():  # a process that has all the hand has, and outlives it
            time.sleep(15)
            os._exit(0)
        if request.doing in ("crash", "fork"):
            os.abort()
        if request.doing == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if request.doing == "hang":
            threading.Event().wait()
        if request.doing == "spin":
            while True:
                pass
        if request.doing == "odd":
            return np.zeros(3)
        if request.doing == "long":
            raise tb.BadInput("a" * 100_000)
        if request.n < 0:
            raise tb.BadInput("n is below zero", field="n")
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return {"n": np.float64(request.n * self.one), "pid": np.int64(os.getpid())}

    def infer(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return [(i["n"] * self.weight, i["pid"]) if isinstance(i, dict) else (0.0, 0) for i in batch]
        time.sleep(0.02)
        return list(zip(batch["n"] * self.weight, batch["pid"], strict=True))

    def finish(self, output: Any, request: Any) -> Any:
        return {"twice": float(output[0]), "of": request.n, "prepared_by": int(output[1]), "worker": os.getpid()}
