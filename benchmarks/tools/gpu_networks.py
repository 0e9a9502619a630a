"""The networks that the GPU benchmark serves, with weights from a seed, and the pictures it sends."""

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

SIDE = 224
CLASSES = 801
MEMBERS = 5


def member(kind: str, seed: int) -> Callable[[], Any]:
    """What makes one network: EfficientNet-B0 or ResNet-18 in half precision, or a small one for machines without GPU.

    It takes pictures as they are decoded, bytes in rows, and makes numbers of them itself: on a GPU that costs nothing.
    """

    def make() -> Any:
        import torch

        torch.manual_seed(seed)
        return _scores()(_network(kind))

    make.__name__ = f"{kind}-{seed}"
    return make


@cache
def _scores() -> Any:
    """The class of all of them: what is compiled for one fits the others."""
    import torch

    class Scores(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            dtype = next(self.net.parameters()).dtype
            x = x.permute(0, 3, 1, 2).to(dtype).div_(127.5).sub_(1.0)
            return self.net(x.contiguous(memory_format=torch.channels_last)).softmax(-1).float()

    return Scores


def _network(kind: str) -> Any:
    import torch

    if kind == "small":
        layers = (
            torch.nn.Conv2d(3, 8, 7, stride=8),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(4),
            torch.nn.Flatten(),
            torch.nn.Linear(128, CLASSES),
        )
        return torch.nn.Sequential(*layers)
    import torchvision  # type: ignore[import-not-found]  # only machines with a GPU have it

    made = torchvision.models.resnet18 if kind == "resnet18" else torchvision.models.efficientnet_b0
    return made(num_classes=2 if kind == "resnet18" else CLASSES).half().to(memory_format=torch.channels_last)


def jpegs(count: int) -> list[bytes]:
    """Pictures of 224 x 224, about 14 kB each."""
    rng, made = np.random.default_rng(0), []
    for _ in range(count):
        noise = Image.fromarray(rng.integers(0, 255, (28, 28, 3), dtype=np.uint8))
        file = io.BytesIO()
        noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        made.append(file.getvalue())
    return made
