"""The three small networks of the ensemble, and the larger one that teaches them; 64 x 64 grey in, scores out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from examples.handwriting.views import VIEWS, View
from torch import Tensor, nn
from torch.nn import functional

KNOWN, NAMED = 800, 2000
"""Characters that are answered, and those that can be told apart: the other 1,200 are `isnull` to whoever asks."""


class Rounding(nn.Module):
    """Rounds what passes to 256 steps, once switched on, so that training feels what int8 will do to it."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            return x
        if self.training:  # ranges follow the data slowly; the first batch sets them
            low, high = x.detach().amin().float(), x.detach().amax().float()
            fresh = self.high == self.low
            self.low.copy_(torch.where(fresh, low, torch.lerp(self.low, low, 0.02)))
            self.high.copy_(torch.where(fresh, high, torch.lerp(self.high, high, 0.02)))
        low, high = self.low.clamp(max=0), self.high.clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-6)
        rounded = torch.clamp(torch.round((x - low) / step), 0, 255) * step + low
        inside = x.clamp(low, high)
        return inside + (rounded - inside).detach()


def rounded_weight(weight: Tensor) -> Tensor:
    """Weights rounded to 255 steps per output channel. Folding a batch norm in later changes nothing about it."""
    peak = weight.detach().abs().flatten(1).amax(1).clamp(min=1e-8)
    step = (peak / 127).view(-1, *[1] * (weight.dim() - 1))
    return weight + (torch.round(weight / step) * step - weight).detach()


class Unit(nn.Module):
    """Convolution, batch norm, activation."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, *, act: str = "", groups: int = 1
    ) -> None:
        super().__init__()
        padding = kernel // 2
        self.conv = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.act = _ACTS[act]
        self.before, self.after = Rounding(), Rounding() if act == "hard" else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        weight = rounded_weight(self.conv.weight) if self.before.on else self.conv.weight
        conv = self.conv
        x = functional.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        x = self.norm(x)
        if self.after is not None:
            x = self.after(x)
        return self.act(x)


_ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hard": functional.hardswish,
}


class Dense(nn.Linear):
    """A linear layer that can be rounded like the convolutions."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after)
        self.before = Rounding()

    def forward(self, x: Tensor) -> Tensor:
        weight = rounded_weight(self.weight) if self.before.on else self.weight
        return functional.linear(self.before(x), weight, self.bias)


class Squeeze(nn.Module):
    """Weighs channels by what the whole picture shows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _by_eight(channels / 8)
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * functional.hardsigmoid(weights)


CLASSES = {"lite": NAMED + 1, "mobile_wide": KNOWN + 1, "mobile_slim": NAMED + 1}
"""What each member tells apart; the last class is all else. A single class for `isnull` catches many
an untidy character; where the others have names too, a picture must look like one of them, or like nothing. One member
still learns it the plain way, since it errs elsewhere: with names for all three, earlier ones were worse together."""


class Bottleneck(nn.Module):
    """Widen, look around per channel, narrow again; with a way past it where the shape stays."""

    def __init__(
        self, before: int, inner: int, after: int, *, kernel: int, stride: int, act: str, squeeze: bool = False
    ) -> None:
        super().__init__()
        widen = [Unit(before, inner, act=act)] if inner != before else []
        look = Unit(inner, inner, kernel, stride, act=act, groups=inner)
        weigh = [Squeeze(inner)] if squeeze else []
        self.steps = nn.Sequential(*widen, look, *weigh, Unit(inner, after))
        self.passes = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x) if self.passes else self.steps(x)


# MobileNetV3 (large): kernel, inner width, width, squeeze, activation, stride. One stride fewer than in the paper, and
# the first in the first block rather than before it, since a 64 x 64 picture has little to give away.
_MOBILE = (
    (3, 16, 16, False, "relu", 2),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 96, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hard", 2),
    (3, 200, 80, False, "hard", 1),
    (3, 184, 80, False, "hard", 1),
    (3, 400, 112, True, "hard", 1),
    (3, 480, 112, True, "hard", 1),
    (5, 560, 160, True, "hard", 2),
    (5, 640, 160, True, "hard", 1),
)


class MobileNet(nn.Module):
    """MobileNetV3 at a given width: squeezes, hard swish, mean over the last 4 x 4."""

    def __init__(self, width: float, head: int, view: View, classes: int) -> None:
        super().__init__()
        self.view = view
        at = _by_eight(16 * width)
        layers: list[nn.Module] = [Unit(view.planes, at, 3, act="hard")]
        for kernel, inner, after, squeeze, act, stride in _MOBILE:
            wide, out = _by_eight(inner * width), _by_eight(after * width)
            layers.append(Bottleneck(at, wide, out, kernel=kernel, stride=stride, act=act, squeeze=squeeze))
            at = out
        last = _by_eight(640 * width)
        self.features = nn.Sequential(*layers, Unit(at, last, act="hard"))
        self.neck, self.head = Dense(last, head), Dense(head, classes)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.view(x)).mean((2, 3))
        return self.head(self.drop(functional.hardswish(self.neck(x))))


# EfficientNet-Lite0: widening, width, repeats, kernel, stride. Again one stride fewer.
_LITE = ((1, 16, 1, 3, 2), (6, 24, 2, 3, 2), (6, 40, 2, 5, 1), (6, 80, 3, 3, 2), (6, 112, 2, 5, 1), (6, 160, 2, 5, 2))


class Lite(nn.Module):
    """EfficientNet-Lite's plan: no squeezes, ReLU6 throughout; the last 4 x 4 are weighed per place, not averaged."""

    def __init__(self, width: float, head: int, classes: int) -> None:
        super().__init__()
        at = _by_eight(24 * width)
        layers: list[nn.Module] = [Unit(1, at, 3, 1, act="relu6")]
        for widening, width_after, repeats, kernel, stride in _LITE:
            after = _by_eight(width_after * width)
            for turn in range(repeats):
                layers.append(
                    Bottleneck(at, at * widening, after, kernel=kernel, stride=1 if turn else stride, act="relu6")
                )
                at = after
        self.features = nn.Sequential(*layers, Unit(at, head, act="relu6"))
        self.places = nn.Conv2d(head, head, 4, groups=head, bias=False)
        self.norm = nn.BatchNorm1d(head)
        self.head = Dense(head, classes)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.places(self.features(x)).flatten(1)
        return self.head(self.drop(self.norm(x)))


class Residual(nn.Module):
    """Two plain convolutions and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(Unit(before, after, 3, stride, act="relu"), Unit(after, after, 3))
        self.past = nn.Identity() if before == after and stride == 1 else Unit(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.steps(x) + self.past(x))


class Teacher(nn.Module):
    """A residual network, some thirty times the work of a small one; used in training only."""

    def __init__(self, width: int, view: View, classes: int) -> None:
        super().__init__()
        self.view = view
        layers: list[nn.Module] = [Unit(view.planes, width, 3, 1, act="relu")]
        at = width
        for after, stride in ((1, 2), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)):
            layers.append(Residual(at, width * after, stride))
            at = width * after
        self.features = nn.Sequential(*layers)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(at, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(self.view(x)).mean((2, 3))))


MEMBERS: dict[str, Callable[[], nn.Module]] = {
    "mobile_wide": lambda: MobileNet(1.4, 1024, VIEWS["mobile_wide"](), CLASSES["mobile_wide"]),
    "mobile_slim": lambda: MobileNet(1.0, 768, VIEWS["mobile_slim"](), CLASSES["mobile_slim"]),
    "lite": lambda: Lite(1.2, 896, CLASSES["lite"]),
}


class SideBySide(nn.Module):
    """Members side by side, for training."""

    def __init__(self, members: dict[str, nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleDict(members)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [member(x) for member in self.members.values()]


def switch_rounding(net: nn.Module, on: bool) -> None:
    """Train from here on as if the network ran in int8, or no longer."""
    for part in net.modules():
        if isinstance(part, Rounding):
            part.on = on


def ranges_of(net: nn.Module) -> list[Tensor]:
    """The ranges that rounding has seen: not averaged over time like weights, but taken as they are."""
    return [end for part in net.modules() if isinstance(part, Rounding) for end in (part.low, part.high)]


def parameters_of(net: nn.Module) -> int:
    """How many numbers were learned."""
    return sum(weight.numel() for weight in net.parameters())


def _by_eight(width: float) -> int:
    """The nearest multiple of eight, as processors like it."""
    return max(8, int(width + 4) // 8 * 8)


def shares_of(scores: Tensor) -> Tensor:
    """Scores to what is served: the shares of the 800 and of `isnull`, which is all the rest."""
    shares = scores.softmax(1)
    return torch.cat([shares[:, :KNOWN], shares[:, KNOWN:].sum(1, keepdim=True)], 1)


def load_member(name: str, state: dict[str, Any]) -> nn.Module:
    """A trained member, ready to be exported or asked."""
    net = MEMBERS[name]()
    net.load_state_dict(state)
    return net.eval()
