"""Trains the three members, each by itself: a large teacher first, then the member on what it says, then for int8.

    python examples/handwriting/train.py --data DATA --out OUT --only lite

Nothing is shared between members, neither pictures nor teacher, so that they err in different places; run the three
side by side if the GPU has room. The seconds given to each phase set the learning rate's course, so the same command
fits any GPU. `--tiny` walks through everything on a CPU and learns nothing.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.data import MIX, Data, Mix
from examples.handwriting.nets import (
    CLASSES,
    KNOWN,
    MEMBERS,
    VIEWS,
    Teacher,
    parameters_of,
    ranges_of,
    shares_of,
    switch_rounding,
)
from examples.handwriting.paper import spoil, to_ink
from examples.handwriting.strokes import HAND, Hand

TEMPERATURE = 2.0


class Course(NamedTuple):
    """What one member and its teacher learn from: a hand, a chance and a mix of pictures of their own."""

    hand: Hand
    seed: int
    mix: Mix = MIX
    smoothing: float = 0.0
    """Of the labels; 0 where `isnull` has 1,201 classes, since it would get an equal share for each of them."""


COURSES = {
    "lite": Course(HAND._replace(sloppy=(0.4, 2.2)), 94),
    "mobile_wide": Course(
        HAND._replace(sloppy=(0.3, 1.9), hurry=(-0.5, 1.0)), 95, Mix(named=0.139, rare=0.061), smoothing=0.1
    ),
    "mobile_slim": Course(HAND._replace(sloppy=(0.3, 1.9), pen=(0.4, 2.6), keep=0.985), 96),
}
"""Their errors should differ: one reads strokes that stray far, one strokes that run together, one poor pens."""


class Learner:
    """One network in training: its optimiser, a slow-moving average of its weights, and its step as a CUDA graph."""

    def __init__(self, net: nn.Module, device: Any, *, smoothing: float = 0.0, average: float = 0.9985) -> None:
        self.device, self.smoothing = device, smoothing
        self.is_cuda = device.type == "cuda"
        self.net = net.to(device, memory_format=torch.channels_last)  # on an H200 a third of the usual order's time
        self.average = copy.deepcopy(self.net).eval()
        self.rate = torch.tensor(0.0, device=device)
        decayed = [weight for weight in net.parameters() if weight.dim() > 1]
        plain = [weight for weight in net.parameters() if weight.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.03}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, fused=self.is_cuda, capturable=self.is_cuda)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate  # one tensor that a captured graph reads anew each time
        self._mine = [*self.net.parameters(), *self._numbers(self.net)]
        self._slow = [*self.average.parameters(), *self._numbers(self.average)]
        self._ranges, self._same_ranges = ranges_of(self.net), ranges_of(self.average)
        self._keep = average
        self._graph: Any = None
        self._places: tuple[Tensor, ...] = ()
        self.loss = torch.zeros((), device=device)

    def restart(self) -> None:
        """Go on from the averaged weights, with a fresh graph: what the step does has changed."""
        with torch.no_grad():
            for mine, slow in zip(self._mine, self._slow, strict=True):
                mine.copy_(slow)
        self._graph = None

    def step(self, x: Tensor, labels: Tensor, taught: Tensor) -> None:
        """One step on a batch; `taught` are the teacher's scores, or empty for none."""
        if not self.is_cuda:
            self._step(x, labels, taught)
            return
        if self._graph is None:
            self._capture(x, labels, taught)
        for place, value in zip(self._places, (x, labels, taught), strict=True):
            place.copy_(value)
        self._graph.replay()

    def _capture(self, x: Tensor, labels: Tensor, taught: Tensor) -> None:
        """Launching some two thousand small kernels one by one would take longer than running them."""
        self._places = (x.clone(), labels.clone(), taught.clone())
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._step(*self._places)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step(*self._places)

    def _step(self, x: Tensor, labels: Tensor, taught: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            scores = self.net(x.contiguous(memory_format=torch.channels_last))
        scores = scores.float()
        loss = functional.cross_entropy(scores, labels.clamp(max=scores.shape[1] - 1), label_smoothing=self.smoothing)
        if len(taught):
            loss = 0.3 * loss + 0.7 * _distance(scores, taught)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._slow, self._mine, 1 - self._keep)
            torch._foreach_copy_(self._same_ranges, self._ranges)
        self.loss.copy_(loss.detach())

    @staticmethod
    def _numbers(net: nn.Module) -> list[Tensor]:
        return [buffer for buffer in net.buffers() if buffer.is_floating_point()]


def _distance(scores: Tensor, taught: Tensor) -> Tensor:
    """How far the scores are from the teacher's, both softened."""
    mine = functional.log_softmax(scores / TEMPERATURE, 1)
    other = functional.log_softmax(taught / TEMPERATURE, 1)
    return functional.kl_div(mine, other, reduction="batchmean", log_target=True) * TEMPERATURE**2


def learn(
    learner: Learner,
    data: Data,
    teacher: nn.Module | None,
    *,
    seconds: float,
    peak: float,
    size: int,
    keep: Callable[[], None] | None = None,
) -> None:
    """Train for so many seconds: the rate rises over the first 4 %, then falls along a cosine.

    `keep` is called nine times on the way, so that little is lost if the machine goes.
    """
    _step(learner, data, 0.0, teacher, size)  # the graph is captured and kernels built before the clock runs
    began, steps, told = time.monotonic(), 0, 0.0
    while True:
        done = (time.monotonic() - began) / seconds
        if done >= 1:
            break
        rate = peak * min(done / 0.04 + 0.01, 0.5 + 0.5 * math.cos(math.pi * done) + 1e-3)
        _step(learner, data, rate, teacher, size)
        steps += 1
        if done - told >= 0.1:
            told = done
            print(
                f"  {time.monotonic() - began:5.0f} s, {steps} steps of {size}, loss {learner.loss.item():.3f}",
                flush=True,
            )
            if keep is not None:
                keep()
        if steps % 4 == 0 and data.device.type == "cuda":
            torch.cuda.synchronize()  # no more than a few steps ahead, or the clock above means nothing


def _step(learner: Learner, data: Data, rate: float, teacher: nn.Module | None, size: int) -> None:
    with torch.no_grad():
        x, labels = data.batch(size)
        x = spoil(x)
        taught = torch.empty(0, device=x.device) if teacher is None else ask(teacher, x)
    learner.rate.fill_(rate)
    learner.step(x, labels, taught)


@torch.no_grad()
def ask(net: nn.Module, x: Tensor) -> Tensor:
    """Scores of a network that is not being trained."""
    with torch.autocast(x.device.type, torch.bfloat16):
        scores: Tensor = net(x.contiguous(memory_format=torch.channels_last))
    return scores.float()


def judge(name: str, net: nn.Module, data: Data) -> None:
    """Held-out faces: as they are, and spoilt like the training pictures."""
    pictures, labels = data.held_out
    for how, change in (("clean", lambda x: x), ("spoilt", spoil)):
        parts = [shares_of(ask(net, change(to_ink(part)))).argmax(1) for part in pictures.split(1024)]
        right = (torch.cat(parts) == labels.clamp(max=KNOWN)).float().mean().item()
        print(f"{name}, held-out faces, {how}: {right:.4f}", flush=True)


def save(name: str, learner: Learner, folder: Path, kind: str) -> None:
    """The averaged weights."""
    path = folder / f"{name}.{kind}.pt"
    beside = path.with_suffix(".new")
    torch.save({key: value.cpu() for key, value in learner.average.state_dict().items()}, beside)
    beside.replace(path)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


def begin(name: str, start: Path | None) -> nn.Module:
    """A new member, or an earlier one; one with a single class for all that is `isnull` is taken apart first."""
    net = MEMBERS[name]()
    if start is None:
        return net
    state = torch.load(start / f"{name}.float.pt", map_location="cpu")
    weight, bias = state["head.weight"], state["head.bias"]
    copies = CLASSES[name] - KNOWN
    if len(bias) == KNOWN + 1 < CLASSES[name]:  # many equal classes with an equal part each: their sum is what it was
        state["head.weight"] = torch.cat([weight[:KNOWN], weight[KNOWN:].expand(copies, -1)])
        state["head.bias"] = torch.cat([bias[:KNOWN], bias[KNOWN:].expand(copies) - math.log(copies)])
    net.load_state_dict(state)
    return net


def train(name: str, chosen: argparse.Namespace) -> None:
    """One member: its pictures, its teacher, itself, itself in int8."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    course = COURSES[name]
    torch.manual_seed(course.seed + chosen.seed)
    most = 60 if chosen.tiny else None
    data = Data(chosen.data, device, chosen.renders, most=most, hand=course.hand, mix=course.mix)

    net = Teacher(8 if chosen.tiny else 64, VIEWS[name](), CLASSES[name])
    teacher = Learner(net, device, smoothing=course.smoothing)
    print(f"teacher of {name}: {parameters_of(teacher.net):,} parameters")
    learn(teacher, data, None, seconds=chosen.teacher_s, peak=2e-3, size=chosen.batch)
    judge(f"teacher of {name}", teacher.average, data)

    member = Learner(begin(name, chosen.start), device, smoothing=course.smoothing)
    print(f"{name}: {parameters_of(member.net):,} parameters")

    def keep() -> None:
        save(name, member, chosen.out, "float")

    learn(member, data, teacher.average, seconds=chosen.member_s, peak=chosen.peak, size=chosen.batch, keep=keep)
    judge(name, member.average, data)
    keep()

    member.restart()
    switch_rounding(member.net, True)
    switch_rounding(member.average, True)
    learn(member, data, teacher.average, seconds=chosen.int8_s, peak=4e-4, size=chosen.batch)
    judge(f"{name} in int8", member.average, data)
    save(name, member, chosen.out, "rounded")


def main() -> None:
    """Every member, or one."""
    chosen = _arguments()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in [chosen.only] if chosen.only else MEMBERS:
        train(name, chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with glyphs48.npz, strokes_..., labels_800.txt"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained weights")
    parser.add_argument("--start", type=Path, help="folder with earlier NAME.float.pt to go on from")
    parser.add_argument("--only", choices=sorted(MEMBERS), help="train this member alone")
    parser.add_argument("--teacher-s", type=float, default=220)
    parser.add_argument("--member-s", type=float, default=1030)
    parser.add_argument("--int8-s", type=float, default=110)
    parser.add_argument("--peak", type=float, default=4e-3, help="highest learning rate of the member")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--renders", type=int, default=200, help="drawings of each of the 800 from its strokes")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="a walk-through on a CPU")
    chosen = parser.parse_args()
    if chosen.start is not None and chosen.start.resolve() == chosen.out.resolve():
        parser.error("--out is the folder of --start: its weights would be written over; name another one")
    if chosen.tiny:
        chosen.teacher_s = chosen.member_s = chosen.int8_s = 6
        chosen.batch, chosen.renders = 64, 2
    return chosen


if __name__ == "__main__":
    main()
