"""The training pictures: font glyphs and drawn strokes by class, and the faces kept back for judging."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from examples.handwriting.nets import KNOWN, NAMED
from examples.handwriting.paper import centred, to_ink
from examples.handwriting.strokes import HAND, Hand, draw, read_strokes, scribble
from examples.handwriting.views import SIDE
from torch import Tensor
from torch.nn import functional

HELD_OUT = ("zen-kurenaido-400", "kiloji")
"""Faces that training never sees."""
ELSE = NAMED
"""The class of what has no name of its own: rare characters and scribbles."""
RARE = 0.5
"""The share of rare characters that are drawn at all: with all of them, untidy characters are taken for those."""
FLOW = (-0.25, 0.55)
HANDS = {
    "lite": HAND._replace(sloppy=(0.4, 2.2), flow=FLOW),
    "mobile_wide": HAND._replace(sloppy=(0.3, 1.9), hurry=(-0.5, 1.0), flow=FLOW),
    "mobile_slim": HAND._replace(sloppy=(0.3, 1.9), pen=(0.4, 2.6), keep=0.985, flow=FLOW),
}
"""Who draws the strokes for a member that is trained by itself: one whose strokes stray far, one whose strokes run
together, one with poor pens. Members that are trained together have drawings of all three."""
RUNNING = HAND._replace(sloppy=(0.3, 2.0), hurry=(0.0, 1.0), pen=(0.4, 1.9), flow=(0.1, 0.65))
"""A fourth for forms, where a running hand is as frequent as a tidy one."""


class Mix(NamedTuple):
    """What share of the training pictures is none of the 800: other named characters, rare ones, scribbles."""

    named: float = 0.27
    rare: float = 0.03
    scribbles: float = 0.03


MIX = Mix()


class Pile:
    """Pictures [n, 64, 64] uint8 sorted by class, to be drawn from class by class."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        order = labels.argsort()
        self.pictures, self.labels = pictures[order], labels[order]
        self.count = torch.bincount(labels, minlength=NAMED + 1)
        self.first = self.count.cumsum(0) - self.count

    def pick(self, labels: Tensor) -> Tensor:
        """One picture at random of each class asked for; one of another class where there is none."""
        chance = torch.rand(len(labels), device=labels.device)
        place = self.first[labels] + (chance * self.count[labels]).long()
        return self.pictures[place.clamp(max=len(self.pictures) - 1)]


class Data:
    """Everything training draws from, on one device."""

    def __init__(
        self, folder: Path, device: Any, renders: int, *, hands: Sequence[Hand], most: int | None = None
    ) -> None:
        """`renders`: how often each of the 800 is drawn from its strokes, others less often; `most`: only so many."""
        began = time.monotonic()
        self.device, self.hands = device, hands
        self.named = [str(char) for char in np.load(folder / "glyphs48.npz")["chars"]]
        if self.named[:KNOWN] != (folder / "labels_800.txt").read_text().split():
            raise ValueError(f"{folder}: the first {KNOWN} characters of glyphs48.npz are not those of labels_800.txt")
        self.glyphs, self.held_out = read_glyphs(folder / "glyphs48.npz", device)
        self.drawn = Pile(*self._drawn(folder / "strokes_hanzi_writer.npz", renders, most))
        self.junk = self._junk
        if most is None and int((self.glyphs.count + self.drawn.count).min()) == 0:
            raise ValueError(f"{folder}: some of the {NAMED + 1} classes have no picture")
        took = time.monotonic() - began
        print(f"pictures: {len(self.glyphs.labels)} of glyphs, {len(self.drawn.labels)} of strokes, {took:.1f} s")

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Ink [size, 1, 64, 64] and labels 0 to 2,000: the 800 evenly, and the others as mixed."""
        named, rare, few = (int(size * share) for share in MIX)
        labels = torch.randint(0, KNOWN, (size,), device=self.device)
        labels[: few + rare] = ELSE
        labels[few + rare :][:named] = torch.randint(KNOWN, NAMED, (named,), device=self.device)
        from_strokes = (torch.rand(size, device=self.device) < 0.5) & (self.drawn.count[labels] > 0)
        from_strokes |= self.glyphs.count[labels] == 0
        strokes, glyphs = torch.where(from_strokes, labels, ELSE), torch.where(from_strokes, 0, labels)
        pictures = torch.where(from_strokes[:, None, None], self.drawn.pick(strokes), self.glyphs.pick(glyphs))
        pictures[:few] = self.junk[torch.randint(0, len(self.junk), (few,), device=self.device)]
        mixed = torch.randperm(size, device=self.device)
        return to_ink(pictures[mixed]), labels[mixed]

    def _drawn(self, path: Path, renders: int, most: int | None) -> tuple[Tensor, Tensor]:
        strokes = read_strokes(str(path), self.device, most)
        classes = {char: place for place, char in enumerate(self.named)}
        labels = torch.tensor([classes.get(char, ELSE) for char in strokes.chars], device=self.device)
        times = torch.where(labels < KNOWN, renders, max(1, renders // 2))
        drawn = torch.rand(len(labels), device=self.device) < RARE
        times = torch.where(labels == ELSE, drawn * max(1, renders // 20), times)
        which = torch.arange(len(labels), device=self.device).repeat_interleave(times)
        # What is no character: half of a character's strokes, scribbles, nothing at all.
        rich = torch.nonzero(strokes.counts >= 10)[:, 0]
        some = rich[torch.randint(0, len(rich), (renders * 50,), device=self.device)]
        parts, scribbles = draw(strokes, some, HAND._replace(keep=0.4)), scribble(renders * 40, self.device)
        blank = torch.zeros(renders * 10, SIDE, SIDE, dtype=torch.uint8, device=self.device)
        self._junk = torch.cat([_tidy(to_ink(torch.cat([parts, scribbles]))), blank])
        shares = [which[turn :: len(self.hands)] for turn in range(len(self.hands))]
        drawings = [_tidy(to_ink(draw(strokes, share, hand))) for share, hand in zip(shares, self.hands, strict=True)]
        return torch.cat(drawings), labels[torch.cat(shares)]


def read_glyphs(path: Path, device: Any) -> tuple[Pile, tuple[Tensor, Tensor]]:
    """The glyphs to train on, and pictures and labels of the faces kept back."""
    file = np.load(path)
    packed = torch.tensor(file["packed"], device=device)
    pictures = torch.stack([packed >> 4, packed & 15], -1).flatten(2) * 17
    parts = [functional.interpolate(to_ink(part), size=SIDE, mode="bilinear") for part in pictures.split(4096)]
    large = _tidy(torch.cat(parts))
    labels = torch.tensor(file["label"].astype(np.int64), device=device)
    faces = torch.tensor(file["source"].astype(np.int64), device=device)
    back = [list(file["sources"]).index(name) for name in HELD_OUT]
    kept = torch.isin(faces, torch.tensor(back, device=device))
    return Pile(large[~kept], labels[~kept]), (large[kept], labels[kept])


def _tidy(ink: Tensor) -> Tensor:
    """Centred as the served model centres pictures, and back to bytes."""
    return torch.cat([(centred(part)[:, 0] * 255).to(torch.uint8) for part in ink.split(4096)])
