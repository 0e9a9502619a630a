"""Trains the three members: a large teacher first, then the three together on what it says, then for int8.

    python examples/handwriting/train.py --data DATA --out OUT

The seconds given to each phase set the learning rate's course, so the same command fits any GPU. On one H200 the
defaults take eight minutes. `--tiny` walks through everything on a CPU and learns nothing. `--refine OUT` goes on from
there, one member at a time, on a CPU: see refine.py.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.data import Data
from examples.handwriting.nets import MEMBERS, Teacher, parameters_of, ranges_of, switch_rounding
from examples.handwriting.paper import spoil, to_ink
from examples.handwriting.refine import refine_all

TEMPERATURE = 2.0


class Learner:
    """One network in training: its optimiser, a slow-moving average of its weights, and its step as a CUDA graph."""

    def __init__(self, net: nn.Module, device: Any, *, average: float = 0.9985, graph: bool = True) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.has_graph = self.is_cuda and graph
        self.net = net.to(device, memory_format=torch.channels_last)
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
        if not self.has_graph:
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
        loss = functional.cross_entropy(scores, labels, label_smoothing=0.1)
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
    learners: list[Learner], data: Data, teacher: nn.Module | None, *, seconds: float, peak: float, size: int
) -> None:
    """Train for so many seconds: the rate rises over the first 4 %, then falls along a cosine."""
    _step_all(learners, data, 0.0, teacher, size)  # graphs are captured and kernels built before the clock runs
    began, steps, told = time.monotonic(), 0, 0.0
    while True:
        done = (time.monotonic() - began) / seconds
        if done >= 1:
            break
        rate = peak * min(done / 0.04 + 0.01, 0.5 + 0.5 * math.cos(math.pi * done) + 1e-3)
        _step_all(learners, data, rate, teacher, size)
        steps += 1
        if done - told >= 0.1:
            told = done
            losses = " ".join(f"{learner.loss.item():.3f}" for learner in learners)
            print(f"  {time.monotonic() - began:5.0f} s, {steps} steps of {size}, loss {losses}", flush=True)
        if steps % 4 == 0 and data.device.type == "cuda":
            torch.cuda.synchronize()  # no more than a few steps ahead, or the clock above means nothing


def _step_all(learners: list[Learner], data: Data, rate: float, teacher: nn.Module | None, size: int) -> None:
    with torch.no_grad():
        x, labels = data.batch(size)
        x = spoil(x)
        taught = torch.empty(0, device=x.device) if teacher is None else ask(teacher, x)
    for learner in learners:
        learner.rate.fill_(rate)
        learner.step(x, labels, taught)


@torch.no_grad()
def ask(net: nn.Module, x: Tensor) -> Tensor:
    """Scores of a network that is not being trained."""
    with torch.autocast(x.device.type, torch.bfloat16):
        scores: Tensor = net(x.contiguous(memory_format=torch.channels_last))
    return scores.float()


def judge(nets: dict[str, nn.Module], data: Data) -> None:
    """Held-out faces: as they are, and spoilt like the training pictures."""
    pictures, labels = data.held_out
    torch.manual_seed(0)
    for how, change in (("clean", lambda x: x), ("spoilt", spoil)):
        _judge(nets, pictures, labels, how, change)


def _judge(
    nets: dict[str, nn.Module], pictures: Tensor, labels: Tensor, how: str, change: Callable[[Tensor], Tensor]
) -> None:
    shares: dict[str, list[Tensor]] = {name: [] for name in nets}
    for part in pictures.split(1024):
        x = change(to_ink(part))
        for name, net in nets.items():
            shares[name].append(ask(net, x).softmax(1))
    whole = {name: torch.cat(parts) for name, parts in shares.items()}
    if len(whole) > 1:
        whole["mean"] = torch.stack(list(whole.values())).mean(0)
    right = {name: (rows.argmax(1) == labels).float().mean().item() for name, rows in whole.items()}
    print(f"held-out faces, {how}: " + ", ".join(f"{name} {share:.4f}" for name, share in right.items()), flush=True)


def save(learners: dict[str, Learner], folder: Path, kind: str) -> None:
    """The averaged weights, one file each."""
    for name, learner in learners.items():
        path = folder / f"{name}.{kind}.pt"
        torch.save({key: value.cpu() for key, value in learner.average.state_dict().items()}, path)
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


def main() -> None:
    """Teacher, members, int8."""
    chosen = _arguments()
    if chosen.refine:
        how = {"seed": chosen.seed, "size": chosen.batch, "renders": chosen.renders}
        refine_all(chosen.refine, chosen.data, chosen.out, chosen.only, length=chosen.length, **how)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(chosen.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    chosen.out.mkdir(parents=True, exist_ok=True)
    data = Data(chosen.data, device, chosen.renders, most=60 if chosen.tiny else None)

    teacher = Learner(Teacher(8 if chosen.tiny else 64), device, graph=not chosen.eager)
    print(f"teacher: {parameters_of(teacher.net):,} parameters")
    learn([teacher], data, None, seconds=chosen.teacher_s, peak=2e-3, size=chosen.batch)
    judge({"teacher": teacher.average}, data)

    members = {name: Learner(make(), device, graph=not chosen.eager) for name, make in MEMBERS.items()}
    small = list(members.values())
    for name, member in members.items():
        print(f"{name}: {parameters_of(member.net):,} parameters")
    learn(small, data, teacher.average, seconds=chosen.members_s, peak=4e-3, size=chosen.batch)
    judge({name: member.average for name, member in members.items()}, data)
    save(members, chosen.out, "float")

    for member in members.values():
        member.restart()
        switch_rounding(member.net, True)
        switch_rounding(member.average, True)
    learn(small, data, teacher.average, seconds=chosen.int8_s, peak=4e-4, size=chosen.batch)
    judge({name: member.average for name, member in members.items()}, data)
    save(members, chosen.out, "rounded")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with glyphs48.npz, strokes_..., labels_800.txt"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained weights")
    parser.add_argument("--teacher-s", type=float, default=105)
    parser.add_argument("--members-s", type=float, default=270)
    parser.add_argument("--int8-s", type=float, default=28)
    parser.add_argument("--batch", type=int, help="512, or 128 to refine")
    parser.add_argument("--renders", type=int, help="drawings of each of the 800 from its strokes: 160, or 8 to refine")
    parser.add_argument("--refine", type=Path, metavar="OUT", help="teach the members found there a little more")
    parser.add_argument("--only", choices=sorted(MEMBERS), help="refine this member alone")
    parser.add_argument("--length", type=float, default=1.0, help="refine for this share of the usual steps")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--tiny", action="store_true", help="a walk-through on a CPU")
    chosen = parser.parse_args()
    if chosen.tiny:
        chosen.teacher_s = chosen.members_s = chosen.int8_s = 6
        chosen.batch, chosen.renders, chosen.length = 64, 2, 0.01
    chosen.batch = chosen.batch or (128 if chosen.refine else 512)
    chosen.renders = chosen.renders or (8 if chosen.refine else 160)
    return chosen


if __name__ == "__main__":
    main()
