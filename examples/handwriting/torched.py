"""The served networks for torch, made of the ONNX files: for GPUs. Needs `timebound[torch,convert]`."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import timebound as tb

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.nets import shares_of, switch_rounding
from examples.handwriting.restore import restore

from timebound.demo import app
from timebound.demo.picture import read_picture

FOLDER = Path(app.__file__).parent


class Shares(nn.Module):
    """A network whose scores are turned into shares of one for 801 answers, as in the files."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: Tensor) -> Tensor:
        return shares_of(self.net(pixels))


def members(device: str) -> list[Any]:
    """The three networks, best first. Weights are those of the files; nothing in between is rounded to int8."""
    return [tb.torch(_made(FOLDER / file), device=device) for file in app.FILES]


def _made(path: Path) -> nn.Module:
    pictures = [read_picture(tb.image.decode(base64.b64decode(one["image"]), mode="RGB")) for one in app.SAMPLES]
    net = restore(path.stem, path, torch.from_numpy(np.stack(pictures)[:, None]))
    switch_rounding(net, False)
    return Shares(net)
