"""Computes on the stand-in for a device, which fails on a number below zero, once or each time."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

import timebound as tb
from timebound.devices.base import current_device


class LosesDevice(tb.Model):
    path = "/loses"
    deadline = 20.0
    max_batch = 4
    example: ClassVar[Any] = {"n": 1}

    class Request(tb.Struct):
        n: float
        once: str = ""

    def load(self) -> None:
        self.net = tb.torch(lambda: nn.Linear(1, 1), device="host")

    def prepare(self, request: Any) -> Any:
        if request.n < 0 and not (request.once and Path(request.once).exists()):
            if request.once:
                Path(request.once).touch()
            device: Any = current_device()
            device.lose("CUDA error: an illegal memory access was encountered")
        return np.array([request.n], np.float32)

    def finish(self, output: Any, request: Any) -> Any:
        return {"n": request.n}
