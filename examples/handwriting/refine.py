"""Teaches each trained member a little more by itself, each in another kind of untidy hand; a CPU is enough.

python examples/handwriting/train.py --refine OUT --data DATA --out REFINED
"""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from examples.handwriting.data import Data
from examples.handwriting.nets import MEMBERS, load_member
from examples.handwriting.paper import spoil
from examples.handwriting.strokes import HAND, Hand
from torch import Tensor, nn
from torch.nn import functional

EARLY = 9
"""Layers that stay as they are: they see pen and paper, and take most of the time."""


class Course(NamedTuple):
    """What one member learns from: its own hand, its own chance, and for how long."""

    hand: Hand
    seed: int
    steps: int


COURSES = {
    "lite": Course(HAND._replace(sloppy=(0.6, 2.2)), 94, 300),
    "mobile_wide": Course(HAND._replace(sloppy=(0.5, 1.9), hurry=(-0.4, 1.0)), 95, 300),
    "mobile_slim": Course(HAND._replace(sloppy=(0.5, 1.9), pen=(0.4, 2.6), keep=0.985), 96, 400),
}
"""Their errors should differ: one reads strokes that stray far, one strokes that run together, one poor pens."""


class Late(nn.Module):
    """A member whose first layers stay as they are; no batch norm gathers new statistics."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        features = net.features
        assert isinstance(features, nn.Sequential)
        self.early, self.late = features[:EARLY], copy.copy(net)
        self.late._modules = {**net._modules, "features": features[EARLY:]}
        self.early.requires_grad_(False)

    def train(self, mode: bool = True) -> Late:
        """Drop-out is all that training switches on."""
        super().train(False)
        for part in self.modules():
            if isinstance(part, nn.Dropout):
                part.train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
            x = self.early(x)
        scores: Tensor = self.late(x.float())
        return scores


def refine(
    name: str, weights: Path, data: Path, out: Path, *, length: float, seed: int, size: int, renders: int
) -> None:
    """One member: from its int8-ready weights to better ones, after the same number of steps on any machine."""
    course = COURSES[name]
    steps = max(1, round(course.steps * length))
    torch.manual_seed(course.seed + seed)
    pictures = Data(data, torch.device("cpu"), renders, hand=course.hand, rare=0.15)
    member = load_member(name, torch.load(weights / f"{name}.rounded.pt", map_location="cpu"))
    net = Late(member.to(memory_format=torch.channels_last)).train()
    learned = [weight for weight in net.late.parameters() if weight.requires_grad]
    slow = [weight.detach().clone() for weight in learned]
    optimizer = torch.optim.AdamW(learned, weight_decay=0.01)
    began, losses = time.monotonic(), []
    for step in range(steps):
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = 4e-4 * min(done / 0.05 + 0.02, 0.5 + 0.5 * math.cos(math.pi * done))
        losses.append(_step(net, optimizer, *pictures.batch(size)))
        torch._foreach_lerp_(slow, [weight.detach() for weight in learned], max(0.02, 1 / (step + 1)))
        if step % max(1, steps // 20) == 0:
            recent = sum(losses[-20:]) / len(losses[-20:])
            print(f"  {name} {time.monotonic() - began:5.0f} s, {step} steps of {size}, loss {recent:.3f}", flush=True)
    with torch.no_grad():
        torch._foreach_copy_(learned, slow)
    for kind in ("float", "rounded"):  # the same weights: what rounding taught them, they keep
        path = out / f"{name}.{kind}.pt"
        torch.save(member.state_dict(), path)
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


def _step(net: Late, optimizer: torch.optim.Optimizer, clean: Tensor, labels: Tensor) -> float:
    scores = net(spoil(clean))
    loss = functional.cross_entropy(scores, labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.late.parameters(), 2.0)
    optimizer.step()
    return float(loss.detach())


def refine_all(weights: Path, data: Path, out: Path, only: str | None, *, length: float, **how: int) -> None:
    """Every member, or one: they know nothing of each other, so they can run side by side."""
    out.mkdir(parents=True, exist_ok=True)
    for name in [only] if only else MEMBERS:
        refine(name, weights, data, out, length=length, **how)
