"""Trains the three members together: a large teacher first, then the three on what it says, then for int8.

    python examples/handwriting/train.py --data DATA --out OUT [--start FOLDER] [--forms 0.7]

What is served is their mean, so half of what they are taught (`--together`) is to be right together: where two of them
are, the third is free to learn something else. The other half is to be right alone, for the answers that wait for no
other member. With `--forms` a share of the pictures are crops of forms, which other processes draw meanwhile. With
`--remember` there is no teacher but the networks as they were: what they read in a clean character, before it is put
on a form or spoilt, is what they learn to read there. The seconds given to each phase set the learning rate's course,
so the same command fits any GPU. `--tiny` walks through everything on a CPU and learns nothing.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install 'timebound[torch]'") from None

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.data import HANDS, RUNNING, Data
from examples.handwriting.folders import folder_with
from examples.handwriting.mill import Mill
from examples.handwriting.nets import (
    KNOWN,
    MEMBERS,
    NAMED,
    SideBySide,
    Teacher,
    load_member,
    parameters_of,
    ranges_of,
    shares_of,
    switch_rounding,
)
from examples.handwriting.paper import spoil
from examples.handwriting.pool import Pictures
from examples.handwriting.views import VIEWS, AllViews

TEMPERATURE = 2.0
LABEL, TAUGHT = 0.3, 0.7
"""How much labels count, and how much what the teacher says."""
TOGETHER = 0.5
"""How much it counts that the members' mean is right; the rest is for each of them by itself."""


def alone(scores: Tensor, labels: Tensor, taught: Tensor) -> Tensor:
    """How wrong one network is; `taught` are the teacher's scores, or empty for none."""
    loss = functional.cross_entropy(scores, labels.clamp(max=scores.shape[1] - 1))
    if not len(taught):
        return loss
    if taught.shape[1] != scores.shape[1]:  # one of the two has no names
        taught, scores = (shares_of(one).clamp(min=1e-9).log() for one in (taught, scores))
    mine = functional.log_softmax(scores / TEMPERATURE, 1)
    other = functional.log_softmax(taught / TEMPERATURE, 1)
    far = functional.kl_div(mine, other, reduction="batchmean", log_target=True) * TEMPERATURE**2
    return LABEL * loss + TAUGHT * far


def together(all_scores: list[Tensor], labels: Tensor, taught: Tensor, *, share: float = TOGETHER) -> Tensor:
    """How wrong the three are: one by one, and, for this share of it, their mean as it is served."""
    each = torch.stack([alone(scores, labels, taught) for scores in all_scores]).mean()
    mean = torch.stack([shares_of(scores) for scores in all_scores]).mean(0).clamp(min=1e-7).log()
    right = functional.nll_loss(mean, labels.clamp(max=KNOWN))
    if len(taught):
        right = LABEL * right - TAUGHT * (shares_of(taught) * mean).sum(1).mean()
    return (1 - share) * each + share * right


class Learner:
    """What is in training: its optimiser, a slow-moving average of its weights, and its step as a CUDA graph."""

    def __init__(
        self, net: nn.Module, device: Any, how_wrong: Callable[..., Tensor], *, average: float = 0.9985
    ) -> None:
        self.device, self.how_wrong = device, how_wrong
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
        scores = [one.float() for one in scores] if isinstance(scores, list) else scores.float()
        loss = self.how_wrong(scores, labels, taught)
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


def learn(
    learner: Learner,
    pictures: Pictures,
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
    _step(learner, pictures, 0.0, teacher, size)  # the graph is captured and kernels built before the clock runs
    began, steps, told = time.monotonic(), 0, 0.0
    while True:
        done = (time.monotonic() - began) / seconds
        if done >= 1:
            break
        rate = peak * min(done / 0.04 + 0.01, 0.5 + 0.5 * math.cos(math.pi * done) + 1e-3)
        _step(learner, pictures, rate, teacher, size)
        steps += 1
        if done - told >= 0.1:
            told = done
            took, loss = time.monotonic() - began, learner.loss.item()
            print(f"  {took:5.0f} s, {steps} steps of {size}, loss {loss:.3f}, {pictures.made} forms", flush=True)
            if keep is not None:
                keep()
        if steps % 4 == 0:
            if pictures.device.type == "cuda":
                torch.cuda.synchronize()  # no more than a few steps ahead, or the clock above means nothing
            pictures.renew()


def _step(learner: Learner, pictures: Pictures, rate: float, teacher: nn.Module | None, size: int) -> None:
    with torch.no_grad():
        x, labels, taught = pictures.batch(size)
        if teacher is not None:
            taught = ask(teacher, x)
    learner.rate.fill_(rate)
    learner.step(x, labels, taught)


@torch.no_grad()
def ask(net: nn.Module, x: Tensor) -> Any:
    """Scores of a network that is not being trained, or of three."""
    with torch.autocast(x.device.type, torch.bfloat16):
        scores = net(x.contiguous(memory_format=torch.channels_last))
    return [one.float() for one in scores] if isinstance(scores, list) else scores.float()


def read(members: nn.Module, x: Tensor) -> Tensor:
    """What members that are not being trained say together: shares [n, 801]."""
    return torch.stack([shares_of(scores) for scores in ask(members, x)]).mean(0)


def _frozen(members: dict[str, nn.Module], device: Any) -> nn.Module:
    """The members as they are now, whatever becomes of them."""
    return SideBySide(copy.deepcopy(members)).to(device, memory_format=torch.channels_last).eval()


def judge(name: str, net: nn.Module, pictures: Pictures) -> None:
    """Held-out faces: as they are, spoilt like the training pictures, and on forms."""
    for how, x, labels in pictures.held_out():
        answers = []
        for part in x.split(1024):
            scores = ask(net, part)
            shares = [shares_of(one) for one in (scores if isinstance(scores, list) else [scores])]
            answers.append(torch.stack([one.argmax(1) for one in [*shares, sum(shares)]]))
        right = (torch.cat(answers, 1) == labels.clamp(max=KNOWN)).float().mean(1)
        print(f"{name}, held-out faces, {how}: {' '.join(f'{one:.4f}' for one in right.tolist())}", flush=True)


def save(learner: Learner, folder: Path, kind: str) -> None:
    """The averaged weights of each member."""
    for name, net in learner.average.members.items():
        write(net, folder / f"{name}.{kind}.pt")


def write(net: nn.Module, path: Path) -> None:
    """A network's weights, tables of them in 16 bits: more than enough before int8, and half as much to carry."""
    state = {key: value.cpu() for key, value in net.state_dict().items()}
    beside = path.with_suffix(".new")
    torch.save({key: value.half() if value.dim() > 1 else value for key, value in state.items()}, beside)
    beside.replace(path)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


def begin(names: list[str], start: Path | None, data: Data) -> dict[str, nn.Module]:
    """New members, or those of an earlier training, or of ONNX files."""
    if start is None:
        return {name: MEMBERS[name]() for name in names}
    if all((start / f"{name}.float.pt").is_file() for name in names):
        return {name: load_member(name, torch.load(start / f"{name}.float.pt")).train() for name in names}
    from examples.handwriting.restore import restore  # needs onnx

    pictures = spoil(data.batch(2048 if data.device.type == "cuda" else 128)[0])
    return {name: restore(name, start / f"{name}.onnx", pictures) for name in names}


def teach(chosen: argparse.Namespace, pictures: Pictures) -> nn.Module | None:
    """A teacher that sees what its pupils see, or none if there is no time for one; an earlier one if it is there."""
    if chosen.teacher_s == 0:
        return None
    view = VIEWS[chosen.only]() if chosen.only else AllViews()
    net = Teacher(8 if chosen.tiny else 64, view, NAMED + 1)
    if chosen.teacher and chosen.teacher.is_file():
        net.load_state_dict(torch.load(chosen.teacher))
        net = net.to(pictures.device, memory_format=torch.channels_last).eval()
        judge("earlier teacher", net, pictures)
        return net
    teacher = Learner(net, pictures.device, alone)
    print(f"teacher: {parameters_of(teacher.net):,} parameters")
    learn(teacher, pictures, None, seconds=chosen.teacher_s, peak=2e-3, size=chosen.batch)
    judge("teacher", teacher.average, pictures)
    if chosen.teacher:
        write(teacher.average, chosen.teacher)
    return teacher.average


def train(chosen: argparse.Namespace) -> None:
    """The pictures, the teacher, the members, the members in int8."""
    began = time.monotonic()
    mill = Mill(chosen.processes, 64 if chosen.tiny else 512, chosen.seed) if chosen.forms else None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(chosen.seed)
    names = [chosen.only] if chosen.only else list(MEMBERS)
    hands = [*(HANDS[name] for name in names), *([RUNNING] if chosen.forms else [])]
    data = Data(chosen.data, device, chosen.renders, hands=hands, most=60 if chosen.tiny else None)
    members = begin(names, chosen.start, data)
    wise = partial(read, _frozen(members, device)) if chosen.remember else None
    pictures = Pictures(data, mill, share=chosen.forms, room=chosen.pool, wise=wise)
    print(f"ready after {time.monotonic() - began:.0f} s, {pictures.made} forms", flush=True)
    teacher = teach(chosen, pictures)
    pupils = Learner(SideBySide(members), device, partial(together, share=chosen.together))
    print(", ".join(f"{name}: {parameters_of(net):,} parameters" for name, net in members.items()))
    if chosen.start is not None:
        judge("members to start from, and together", pupils.average, pictures)

    def keep() -> None:
        save(pupils, chosen.out, "float")

    seconds = chosen.members_s
    if chosen.end_s:
        seconds = max(1.0, chosen.end_s - (time.monotonic() - began) - chosen.int8_s)
        print(f"members: {seconds:.0f} s", flush=True)
    learn(pupils, pictures, teacher, seconds=seconds, peak=chosen.peak, size=chosen.batch, keep=keep)
    keep()
    judge("members, and together", pupils.average, pictures)
    if chosen.int8_s > 0:
        learn_rounding(pupils, pictures, teacher, chosen)


def learn_rounding(pupils: Learner, pictures: Pictures, teacher: nn.Module | None, chosen: argparse.Namespace) -> None:
    """Train on as if in int8."""
    pupils.restart()
    switch_rounding(pupils.net, True)
    switch_rounding(pupils.average, True)
    learn(pupils, pictures, teacher, seconds=chosen.int8_s, peak=4e-4, size=chosen.batch)
    judge("in int8", pupils.average, pictures)
    save(pupils, chosen.out, "rounded")


def main() -> None:
    """Trains, and writes float and rounded weights of each member."""
    chosen = _arguments()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    chosen.out.mkdir(parents=True, exist_ok=True)
    train(chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = folder_with("glyphs48.npz", "strokes_hanzi_writer.npz", "labels_800.txt")
    parser.add_argument(
        "--data", type=data, required=True, help="folder with glyphs48.npz, strokes_..., labels_800.txt"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained weights")
    parser.add_argument("--start", type=Path, help="folder of ONNX files, or of an earlier OUT, to go on from")
    parser.add_argument("--only", choices=sorted(MEMBERS), help="train this member alone, with a teacher of its view")
    parser.add_argument("--teacher-s", type=float, default=300, help="seconds for the teacher; 0 for none")
    parser.add_argument("--teacher", type=Path, help="file of an earlier teacher; where it is not, the new one is kept")
    parser.add_argument("--remember", action="store_true", help="learn what the --start members read before spoiling")
    parser.add_argument("--members-s", type=float, default=1100)
    parser.add_argument("--end-s", type=float, help="instead: the members learn until so long after the start")
    parser.add_argument("--int8-s", type=float, default=150, help="0: float weights only")
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate of the members")
    parser.add_argument("--together", type=float, default=TOGETHER, help="how much it counts that their mean is right")
    parser.add_argument("--forms", type=float, default=0.0, help="share of the pictures that are crops of forms")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that draw forms")
    parser.add_argument("--pool", type=int, default=400_000, help="forms to choose from; the oldest are replaced")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--renders", type=int, default=240, help="drawings of each of the 800 from its strokes")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="a walk-through on a CPU")
    chosen = parser.parse_args()
    if chosen.remember and (chosen.start is None or chosen.teacher_s):
        parser.error("--remember needs --start, whose members are the teacher then, and --teacher-s 0")
    for name in [chosen.only] if chosen.only else MEMBERS:
        if not chosen.start or (chosen.start / f"{name}.float.pt").is_file():
            continue
        if not (chosen.start / f"{name}.onnx").is_file():
            parser.error(f"{chosen.start} has no {name}.onnx; export.py writes it")
        if importlib.util.find_spec("onnx") is None:
            parser.error("--start reads ONNX files, and onnx is not installed: pip install onnx")
    if chosen.tiny:
        chosen.teacher_s, chosen.members_s, chosen.int8_s = min(chosen.teacher_s, 6), 6, 6
        chosen.batch, chosen.renders, chosen.pool, chosen.processes = 64, 3, 1000, 2
    return chosen


if __name__ == "__main__":
    main()
