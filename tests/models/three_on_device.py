"""Three networks that take 20 ms each, whatever the batch, and pass on in which process an item was prepared."""

import os
import time
from typing import Any, ClassVar

import numpy as np

import timebound as tb

MEMBER_S = 0.02


def takes(factor: float) -> Any:
    import torch  # what only prepares does without it

    class Takes(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            time.sleep(MEMBER_S)
            return torch.cat([x[:, :1] * factor, x[:, 1:]], 1)

    return Takes()


class Three(tb.Model):
    deadline = 20.0
    max_batch = 4
    example: ClassVar[Any] = {"n": 1}

    class Request(tb.Struct):
        n: int

    def load(self) -> None:
        # None of them alone gives what all three give.
        self.net = tb.ensemble(*[tb.torch(takes(factor), device="cuda") for factor in (1.0, 2.0, 6.0)])

    def prepare(self, request: Any) -> Any:
        time.sleep(0.002)  # what takes less is not worth handing over
        return np.array([request.n, os.getpid()], np.float32)

    def finish(self, output: Any, request: Any) -> Any:
        return {"n": round(float(output[0]) / 3, 3), "hand": round(float(output[1])), "worker": os.getpid()}
