"""Networks on the stand-in for a GPU: one that cannot be captured, and one that takes long over each shape it meets."""

import os
import time
from typing import Any, ClassVar

import numpy as np
import torch

import timebound as tb


class _Looking(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x * 2 if x.sum().item() >= 0 else x


class _SlowAtFirst(torch.nn.Module):  # type: ignore[misc]
    """As a GPU's libraries are, which write kernels for a shape when they first meet it."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[Any] = {1}

    def forward(self, x: Any) -> Any:
        if x.shape[1] not in self.met:
            time.sleep(2.0)
            self.met.add(x.shape[1])
        return x.sum(1, keepdim=True)


class Given(tb.Struct):
    numbers: list[float]


class Numbers:
    deadline = 3.0
    max_batch = 2
    example: ClassVar[Any] = {"numbers": [1.0]}

    def prepare(self, request: Any) -> Any:
        return np.array(request.numbers, np.float32)

    def finish(self, output: Any, request: Any) -> Any:
        return {"sum": float(output[0]), "pid": os.getpid()}


class Looks(Numbers, tb.Model):
    Request = Given

    def load(self) -> None:
        self.net = tb.torch(_Looking, device="host")


class SlowAtFirst(Numbers, tb.Model):
    Request = Given

    def load(self) -> None:
        self.net = tb.torch(_SlowAtFirst, device="host")
