"""Crops of forms to judge by: strokes and typefaces that training never sees, on forms that are drawn alike."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from examples.handwriting.data import read_glyphs
from examples.handwriting.forms import PLAIN, VARIED
from examples.handwriting.mill import crops_of
from examples.handwriting.nets import KNOWN
from examples.handwriting.paper import bent, centred, to_ink
from examples.handwriting.strokes import HAND, draw, read_strokes, scribble
from torch import Tensor

from timebound.demo.picture import is_clean, read_picture

COUNT, OTHERS = 20_000, 0.2
"""How many crops, and what share of them is none of the 800."""
RARE, FACES = 0.1, 0.2
"""The share of others that are rare characters, and of all that are glyphs."""
HANDS = (
    HAND._replace(sloppy=(0.3, 2.0)),
    HAND._replace(flow=(0.0, 0.5), hurry=(-0.8, 1.0)),
    HAND._replace(sloppy=(0.3, 2.0), flow=(0.2, 0.6), hurry=(0.0, 1.0), pen=(0.4, 1.8)),
)
"""Tidy and shaky, flowing, and a running hand."""
PILE = 500
"""So many crops at a time have the same share of faces, of each hand and of others, and are each other's neighbours."""
PRINTED, CROSSED, EMPTY = 0.06, 0.3, 0.2
"""On varied forms: the share of the 800 that is printed, and of the others that is crossed out, or nothing at all."""
KINDS = ("written", "printed", "crossed out", "empty")


class Characters(NamedTuple):
    """Clean ink [n, 64, 64] bytes of held-out strokes and faces; labels 0 to 800."""

    pictures: Tensor
    labels: Tensor


class Crops(NamedTuple):
    """Prepared crops."""

    ink: Any
    """[n, 1, 64, 64] in 0..1."""
    labels: Any
    clean: Any
    """Which of them were taken for clean pictures."""
    kinds: Any
    """Places in `KINDS`."""
    took_s: Any
    """How long it took to prepare each."""


def held_out(data: Path, seed: int) -> list[Characters]:
    """The faces, then the pen of each hand: frequent characters, and as many rare ones as their share asks for."""
    torch.manual_seed(seed)
    _, (glyphs, labels) = read_glyphs(data / "glyphs48.npz", torch.device("cpu"))
    piles = [Characters(glyphs, labels.clamp(max=KNOWN))]
    strokes = read_strokes(str(data / "strokes_pen_tomoe.npz"), "cpu")
    named = {str(char): place for place, char in enumerate(np.load(data / "glyphs48.npz")["chars"])}
    frequent = [place for place, char in enumerate(strokes.chars) if char in named]
    rare = [place for place, char in enumerate(strokes.chars) if char not in named]
    others = sum(named[strokes.chars[place]] >= KNOWN for place in frequent)
    for turn, hand in enumerate(HANDS):
        places = frequent + rare[turn :: max(1, round(len(rare) / (others * RARE)))]
        drawn = draw(strokes, torch.tensor(places), hand, chunk=16)
        tidy = torch.cat([centred(part)[:, 0] for part in to_ink(drawn).split(512)])
        right = [min(named.get(strokes.chars[place], KNOWN), KNOWN) for place in places]
        piles.append(Characters((tidy * 255).to(torch.uint8), torch.tensor(right)))
    return piles


def draw_crops(piles: list[Characters], seed: int, count: int = COUNT, *, varied: bool = False) -> Crops:
    """So many crops of these characters, the same for the same seed; `varied`: with what most forms do not have."""
    torch.manual_seed(seed)
    parts = [_pile(piles, min(PILE, count - turn), [seed, turn], varied) for turn in range(0, count, PILE)]
    return Crops(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _pile(piles: list[Characters], some: int, seed: list[int], varied: bool) -> Crops:
    faces = round(some * FACES)
    sizes = [faces, *((some - faces + turn) // len(HANDS) for turn in range(len(HANDS)))]
    others = np.diff(np.round(np.cumsum([0, *sizes]) * OTHERS).astype(int)).tolist()
    picked = [_picked(*each) for each in zip(piles, sizes, others, strict=True)]
    mixed = torch.randperm(some)
    pictures, labels = (torch.cat(parts)[mixed] for parts in zip(*picked, strict=True))
    ink, kinds = _to_bytes(bent(to_ink(pictures))), torch.zeros(some, dtype=torch.long)
    if varied:
        _vary(Characters(ink, labels), kinds, piles[0])
    out, took = np.empty((some, 1, 64, 64), np.float32), np.empty(some)
    clean = np.empty(some, bool)
    for place, crop in enumerate(crops_of(ink.numpy(), seed, VARIED if varied else PLAIN)):
        began = time.perf_counter()
        out[place] = read_picture(crop.picture)
        took[place] = time.perf_counter() - began
        clean[place] = is_clean(crop.picture)
    return Crops(out, labels.numpy(), clean, kinds.numpy(), took)


def _picked(pile: Characters, count: int, others: int) -> Characters:
    """So many at random, so many of them others."""
    known, other = (torch.nonzero(flags)[:, 0] for flags in (pile.labels < KNOWN, pile.labels == KNOWN))
    places = [part[torch.randint(0, len(part), (some,))] for part, some in ((known, count - others), (other, others))]
    which = torch.cat(places)
    return Characters(pile.pictures[which], pile.labels[which])


def _vary(written: Characters, kinds: Tensor, faces: Characters) -> None:
    """Some of the 800 become glyphs as they are printed; some of the others characters crossed out, or nothing."""
    ink, labels = written
    chance, others = torch.rand(len(labels)), labels == KNOWN
    kinds[~others & (chance < PRINTED)] = 1
    kinds[others & (chance < CROSSED)] = 2
    kinds[others & (chance >= 1 - EMPTY)] = 3
    printed, crossed = (torch.nonzero(kinds == kind)[:, 0] for kind in (1, 2))
    glyphs = torch.nonzero(faces.labels < KNOWN)[:, 0]
    chosen = glyphs[torch.randint(0, len(glyphs), (len(printed),))]
    ink[printed], labels[printed] = faces.pictures[chosen], faces.labels[chosen]
    if len(crossed):
        below = ink[torch.randint(0, len(ink), (len(crossed),))]
        ink[crossed] = torch.maximum(below, scribble(len(crossed), ink.device))
    ink[kinds == 3] = 0


def _to_bytes(ink: Tensor) -> Tensor:
    return (ink[:, 0] * 255).to(torch.uint8)
