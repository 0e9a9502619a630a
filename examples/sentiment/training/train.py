"""Trains the network: four networks judge each other's posts, three learn from the judgements and become one.

1. Judging: each of four copies learns three quarters of the posts and judges the quarter it did not see. That says how
   good the recipe is without the test set, and which labels are doubtful.
2. Learning: three copies learn every post, half from its label and half from its judgement; their mean is the network.
3. Rounding: the network learns on with weights and inputs rounded as in the served file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
    from network import CLASSES, Copies, new_head
    from torch import Tensor
    from torch.nn import functional
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install torch") from None

FOLDS, LEARNERS, BATCH = 4, 3, 128
Weights = dict[str, Tensor]


class Posts:
    """The training posts on the device, and the test sets."""

    def __init__(self, path: Path, device: str, limit: int | None) -> None:
        arrays = np.load(path)
        self.device = device
        self.sets = {
            name: (
                torch.from_numpy(arrays[name][:limit].astype(np.int64)).to(device),
                torch.from_numpy(arrays[name + "_labels"][:limit].astype(np.int64)).to(device),
            )
            for name in ("train", "test", "airline")
        }
        self.ids, self.labels = self.sets["train"]
        self.truth = functional.one_hot(self.labels, CLASSES).float()
        # Added to the logits in training only: so the network learns classes as if all three were equally common.
        self.log_prior = self.truth.mean(0).log()


def fit(
    network: Copies, posts: Posts, targets: Tensor, rows: list[Tensor], *, epochs: int, rate: float, seed: int
) -> None:
    """Teach each copy its own rows of the training posts, in its own order."""
    torch.manual_seed(seed)
    size = min(BATCH, *(len(own) for own in rows))
    steps = min(len(own) for own in rows) // size * epochs
    decayed = [value for name, value in network.named_parameters() if not name.endswith(("_bias", "_scale", "_shift"))]
    others = [value for name, value in network.named_parameters() if name.endswith(("_bias", "_scale", "_shift"))]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], rate, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, steps, pct_start=0.1, anneal_strategy="linear", cycle_momentum=False
    )
    network.train()
    for _ in range(epochs):
        orders = [own[torch.randperm(len(own), device=posts.device)] for own in rows]
        for start in range(0, steps // epochs * size, size):
            batch = torch.stack([order[start : start + size] for order in orders])
            with torch.autocast(posts.device, torch.bfloat16, enabled=posts.device != "cpu"):
                logits = network(posts.ids[batch])
            each = functional.cross_entropy(
                (logits + posts.log_prior).flatten(0, 1), targets[batch].flatten(0, 1), reduction="none"
            )
            loss = each.view(network.copies, size).mean(1).sum()  # each copy's gradient as if it were alone
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), network.copies**0.5)
            optimizer.step()
            schedule.step()
    network.eval()


@torch.no_grad()
def judge(network: Copies, ids: Tensor, *, batch: int = 512) -> Tensor:
    """Logits [copies, posts, 3], each post read by every copy."""
    device = ids.device.type
    parts = []
    for start in range(0, len(ids), batch):
        part = ids[start : start + batch].expand(network.copies, -1, -1)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            parts.append(network(part).float())
    return torch.cat(parts, 1)


def macro_recall(logits: Tensor, labels: Tensor) -> float:
    """Mean over the classes of the share that is found: the contest's measure."""
    right = logits.argmax(-1) == labels
    return float(torch.stack([right[labels == label].float().mean() for label in range(CLASSES)]).mean())


def judge_each_other(start: Weights, posts: Posts, epochs: int, rate: float) -> Tensor:
    """Logits of each training post from the copy that did not learn it."""
    fold = torch.arange(len(posts.ids), device=posts.device) % FOLDS
    fold = fold[torch.randperm(len(fold), generator=torch.Generator().manual_seed(0)).to(posts.device)]
    network = Copies(start | new_head(0), FOLDS).to(posts.device)
    rows = [torch.nonzero(fold != own).flatten() for own in range(FOLDS)]
    fit(network, posts, posts.truth, rows, epochs=epochs, rate=rate, seed=2)
    everything = judge(network, posts.ids)
    return everything[fold, torch.arange(len(fold), device=posts.device)]


def save(out: Path, name: str, weights: Weights) -> None:
    """Weights in half precision, in files of at most 14 MB."""
    part: dict[str, np.ndarray[Any, Any]] = {}
    number = size = 0
    for key, value in weights.items():
        array = value.cpu().numpy().astype(np.float16)
        if part and size + array.nbytes > 14_000_000:
            np.savez(out / f"{name}{number}.npz", **part)  # type: ignore[arg-type]
            part, number, size = {}, number + 1, 0
        part[key] = array
        size += array.nbytes
    np.savez(out / f"{name}{number}.npz", **part)  # type: ignore[arg-type]


def main() -> None:
    """All four steps, with what each is worth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=7e-5, help="learning rate at its highest")
    parser.add_argument("--limit", type=int, help="use so many posts only, to see whether it runs")
    options = parser.parse_args()
    for name in ("posts.npz", "base.npz"):
        if not (options.folder / name).is_file():
            parser.error(f"{options.folder} has no {name}; prepare.py --out {options.folder} writes it")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {line}", flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    posts = Posts(options.folder / "posts.npz", device, options.limit)
    start = {name: torch.from_numpy(value).to(device) for name, value in np.load(options.folder / "base.npz").items()}
    judgements = judge_each_other(start, posts, options.epochs, options.rate)
    say(f"macro recall {macro_recall(judgements, posts.labels):.4f} on training posts not learned")
    average, targets = learn(start, posts, judgements, options, say)
    save(options.out, "learned", average)
    round_off(average, posts, targets, options.out / "rounded.npz", say)


def learn(
    start: Weights, posts: Posts, judgements: Tensor, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple[Weights, Tensor]:
    """The mean of four networks that learned every post; and what it was taught."""
    targets = (posts.truth + (judgements + posts.log_prior).softmax(-1)) / 2
    network = Copies(start | new_head(0), LEARNERS).to(posts.device)
    everything = torch.arange(len(posts.ids), device=posts.device)
    fit(network, posts, targets, [everything] * LEARNERS, epochs=options.epochs, rate=options.rate, seed=3)
    average = network.average()
    together = Copies(average, 1).to(posts.device).eval()
    for name in ("test", "airline"):
        ids, labels = posts.sets[name]
        each = judge(network, ids)
        recalls = " ".join(f"{macro_recall(logits, labels):.4f}" for logits in each)
        say(f"{name}: learners {recalls}, their votes {macro_recall(each.mean(0), labels):.4f}")
    _tell(together, posts, "their mean", say)
    return average, targets


def round_off(average: Weights, posts: Posts, targets: Tensor, path: Path, say: Callable[[str], None]) -> None:
    """Learn on with everything rounded as it will be served, and write that."""
    network = Copies(average, 1).to(posts.device).eval()
    network.coarsen()
    _tell(network, posts, "rounded", say)
    fit(network, posts, targets, [torch.arange(len(posts.ids), device=posts.device)], epochs=1, rate=4e-5, seed=4)
    _tell(network, posts, "rounded and taught on", say)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in network.average().items():
        if name in network.rounded:
            whole, step = network.codes(name)
            arrays[name], arrays[name + "_step"] = whole.cpu().numpy().astype(np.int8), step.cpu().numpy()
        else:
            arrays[name] = value.cpu().numpy()
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    say("written")


def _tell(network: Copies, posts: Posts, what: str, say: Callable[[str], None]) -> None:
    for name in ("test", "airline"):
        ids, labels = posts.sets[name]
        say(f"{name}: {what} {macro_recall(judge(network, ids)[0], labels):.4f}")


if __name__ == "__main__":
    main()
