"""An ensemble of five networks on a GPU, or one ResNet-18, written as for a processor. GPU_NET says which."""

import faulthandler
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.tools import pauses
from benchmarks.tools.gpu_networks import MEMBERS, jpegs, member

KIND = os.environ.get("GPU_NET", "efficientnet_b0")
DEVICE = os.environ.get("GPU_DEVICE", "cuda")
COMPILE = os.environ.get("GPU_COMPILE") == "1"

if "GPU_TRACES" in os.environ:
    # What every thread does, as long as the process lives: for a server that does not come up.
    trace = Path(os.environ["GPU_TRACES"]) / f"{os.getpid()}.txt"
    faulthandler.dump_traceback_later(25, repeat=True, file=trace.open("w"))
elif "GPU_PAUSES" in os.environ:
    pauses.watch(Path(os.environ["GPU_PAUSES"]))


class Pictures(tb.Model):
    path = "/pictures"
    deadline = 1.0
    accepts = "image/*"
    max_batch = int(os.environ.get("GPU_MAX_BATCH", "128"))
    example = jpegs(1)[0]

    def load(self) -> None:
        count = 1 if KIND == "resnet18" else MEMBERS
        members = [tb.torch(member(KIND, seed), device=DEVICE, compile=COMPILE) for seed in range(count)]
        self.net = tb.ensemble(*members) if count > 1 else members[0]

    def prepare(self, request: bytes) -> Any:
        return np.asarray(Image.open(io.BytesIO(request)).convert("RGB"))

    def finish(self, scores: Any, request: bytes) -> Any:
        return {"label": int(scores.argmax()), "score": float(scores.max())}
