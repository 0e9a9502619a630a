"""The training pictures: font glyphs and drawn strokes by class, and the faces kept back for judging."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples.handwriting.nets import CLASSES
from examples.handwriting.paper import centred, to_ink
from examples.handwriting.strokes import HAND, SIDE, Hand, draw, read_strokes, scribble
from torch import Tensor
from torch.nn import functional

HELD_OUT = ("zen-kurenaido-400", "kiloji")
"""Faces that training never sees."""
ISNULL = CLASSES - 1


class Pile:
    """Pictures [n, 64, 64] uint8 sorted by class, to be drawn from class by class."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        order = labels.argsort()
        self.pictures, self.labels = pictures[order], labels[order]
        self.count = torch.bincount(labels, minlength=CLASSES)
        self.first = self.count.cumsum(0) - self.count

    def pick(self, labels: Tensor) -> Tensor:
        """One picture at random of each class asked for."""
        chance = torch.rand(len(labels), device=labels.device)
        return self.pictures[self.first[labels] + (chance * self.count[labels]).long()]


class Data:
    """Everything training draws from, on one device."""

    def __init__(
        self, folder: Path, device: Any, renders: int, *, most: int | None = None, hand: Hand = HAND, rare: float = 1.0
    ) -> None:
        """`renders`: how often each of the 800 is drawn from its strokes, others less often; `most`: only so many.

        `rare` is the share of characters that are drawn of those the fonts' list of frequent ones leaves out.
        """
        began = time.monotonic()
        self.device, self.hand, self.rare = device, hand, rare
        self.frequent = set(np.load(folder / "glyphs48.npz")["chars"])
        self.known = (folder / "labels_800.txt").read_text().split()
        self.glyphs, self.held_out = read_glyphs(folder / "glyphs48.npz", device)
        self.drawn = Pile(*self._drawn(folder / "strokes_hanzi_writer.npz", renders, most))
        self.junk = self._junk
        took = time.monotonic() - began
        print(f"pictures: {len(self.glyphs.labels)} of glyphs, {len(self.drawn.labels)} of strokes, {took:.1f} s")

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Ink [size, 1, 64, 64] and labels: 77 % characters evenly, 20 % other characters, 3 % scribbles."""
        labels = torch.randint(0, ISNULL, (size,), device=self.device)
        labels[: int(size * 0.23)] = ISNULL
        from_strokes = (torch.rand(size, device=self.device) < 0.5) & (self.drawn.count[labels] > 0)
        strokes = torch.where(from_strokes, labels, ISNULL)
        pictures = torch.where(from_strokes[:, None, None], self.drawn.pick(strokes), self.glyphs.pick(labels))
        few = int(size * 0.03)
        pictures[:few] = self.junk[torch.randint(0, len(self.junk), (few,), device=self.device)]
        mixed = torch.randperm(size, device=self.device)
        return to_ink(pictures[mixed]), labels[mixed]

    def _drawn(self, path: Path, renders: int, most: int | None) -> tuple[Tensor, Tensor]:
        strokes = read_strokes(str(path), self.device, most)
        classes = {char: place for place, char in enumerate(self.known)}
        labels = torch.tensor([classes.get(char, ISNULL) for char in strokes.chars], device=self.device)
        times = torch.where(labels < ISNULL, renders, max(1, renders // 20))
        if self.rare < 1:
            common = torch.tensor([char in self.frequent for char in strokes.chars], device=self.device)
            times *= common | (torch.rand(len(labels), device=self.device) < self.rare)
        which = torch.arange(len(labels), device=self.device).repeat_interleave(times)
        # What is no character: half of a character's strokes, scribbles, nothing at all.
        rich = torch.nonzero(strokes.counts >= 10)[:, 0]
        some = rich[torch.randint(0, len(rich), (renders * 50,), device=self.device)]
        parts, scribbles = draw(strokes, some, HAND._replace(keep=0.4)), scribble(renders * 40, self.device)
        blank = torch.zeros(renders * 10, SIDE, SIDE, dtype=torch.uint8, device=self.device)
        self._junk = torch.cat([_tidy(to_ink(torch.cat([parts, scribbles]))), blank])
        return _tidy(to_ink(draw(strokes, which, self.hand))), labels[which]


def read_glyphs(path: Path, device: Any) -> tuple[Pile, tuple[Tensor, Tensor]]:
    """The glyphs to train on, and pictures and labels of the faces kept back."""
    file = np.load(path)
    packed = torch.tensor(file["packed"], device=device)
    pictures = torch.stack([packed >> 4, packed & 15], -1).flatten(2) * 17
    parts = [functional.interpolate(to_ink(part), size=SIDE, mode="bilinear") for part in pictures.split(4096)]
    large = _tidy(torch.cat(parts))
    labels = torch.tensor(file["label"].astype(np.int64), device=device).clamp(max=ISNULL)
    faces = torch.tensor(file["source"].astype(np.int64), device=device)
    back = [list(file["sources"]).index(name) for name in HELD_OUT]
    kept = torch.isin(faces, torch.tensor(back, device=device))
    return Pile(large[~kept], labels[~kept]), (large[kept], labels[kept])


def _tidy(ink: Tensor) -> Tensor:
    """Centred as the served model centres pictures, and back to bytes."""
    return torch.cat([(centred(part)[:, 0] * 255).to(torch.uint8) for part in ink.split(4096)])
