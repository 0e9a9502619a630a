"""Crops of forms to judge by: strokes and typefaces that training never sees, on forms that are drawn alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from examples.handwriting.data import read_glyphs
from examples.handwriting.mill import prepared
from examples.handwriting.nets import KNOWN
from examples.handwriting.paper import bent, centred, to_ink
from examples.handwriting.strokes import HAND, draw, read_strokes

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


class Characters(NamedTuple):
    """Clean ink [n, 64, 64] bytes of held-out strokes and faces; labels 0 to 800."""

    pictures: torch.Tensor
    labels: torch.Tensor


def draw_crops(data: Path, seed: int, count: int = COUNT) -> tuple[Any, Any]:
    """Prepared crops [count, 1, 64, 64] in 0..1 and their labels, the same for the same seed."""
    torch.manual_seed(seed)
    faces, *hands = _characters(data)
    torch.manual_seed(seed + 1)
    out, labels = [], []
    for turn in range(0, count, 500):
        some = min(500, count - turn)
        pile = [faces, *hands][0 if torch.rand(()) < FACES else 1 + turn // 500 % len(hands)]
        known, other = (torch.nonzero(flags)[:, 0] for flags in (pile.labels < KNOWN, pile.labels == KNOWN))
        others = round(some * OTHERS)
        which = torch.cat([_picked(known, some - others), _picked(other, others)])[torch.randperm(some)]
        ink = bent(to_ink(pile.pictures[which]))
        out.append(prepared((ink[:, 0] * 255).to(torch.uint8).numpy(), seed * 10_000 + turn))
        labels.append(pile.labels[which])
    return np.concatenate(out)[:, None].astype(np.float32) / 255, torch.cat(labels).numpy()


def _picked(places: torch.Tensor, count: int) -> torch.Tensor:
    return places[torch.randint(0, len(places), (count,))]


def _characters(data: Path) -> list[Characters]:
    """The faces, then the pen of each hand: frequent characters, and as many rare ones as their share asks for."""
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
