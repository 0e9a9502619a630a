"""Characters drawn from their strokes by an unsteady hand, many at a time, on whatever device the tensors are on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from examples.handwriting.views import SIDE
from torch import Tensor
from torch.nn import functional

POINTS = 9
"""Every stroke is a line through so many points."""
ABOVE, SMOOTHED = 3, 8
"""Points of the pen's way from one stroke to the next, and how often its way is smoothed."""
MOST = 30
"""Characters with more strokes than this are left out: few, and none of the 800."""


class Hand(NamedTuple):
    """How untidily somebody writes: ranges that each drawing takes its own value from."""

    sloppy: tuple[float, float] = (0.2, 1.8)
    """How far strokes stray."""
    hurry: tuple[float, float] = (-1.0, 0.8)
    """The share of strokes that run into the next one; none below 0."""
    pen: tuple[float, float] = (0.5, 2.1)
    """Half the width of the pen, in pixels."""
    keep: float = 1.0
    """The share of strokes that are written at all."""
    flow: tuple[float, float] = (0.0, 0.0)
    """How far the pen cuts its way short, within strokes and from one to the next; not at all below 0."""


HAND = Hand()


class Strokes:
    """The centre lines of many characters: `lines` [characters, strokes, points, 2] in 0..1, and how many are used."""

    def __init__(self, chars: list[str], lines: Tensor, counts: Tensor) -> None:
        self.chars, self.lines, self.counts = chars, lines, counts


def read_strokes(path: str, device: Any, most: int | None = None) -> Strokes:
    """A file of centre lines, each resampled to `POINTS` points at equal distances; the first `most` characters."""
    file = np.load(path)
    points, starts, firsts = file["points"].astype(np.float32) / 1024, file["stroke_start"], file["char_start"]
    chars, counts, lines = [], [], []
    for place, char in enumerate(file["chars"][:most]):
        first, last = int(firsts[place]), int(firsts[place + 1])
        if not 0 < last - first <= MOST:
            continue
        drawn = np.zeros((MOST, POINTS, 2), np.float32)
        for turn in range(first, last):
            drawn[turn - first] = _evenly(points[starts[turn] : starts[turn + 1]])
        chars.append(str(char))
        counts.append(last - first)
        lines.append(drawn)
    return Strokes(chars, torch.tensor(np.stack(lines), device=device), torch.tensor(counts, device=device))


def _evenly(line: Any) -> Any:
    """The same line through `POINTS` points at equal distances."""
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))]) if len(line) > 1 else np.zeros(1)
    wanted = np.linspace(0, along[-1], POINTS)
    return np.stack([np.interp(wanted, along, line[:, axis]) for axis in (0, 1)], 1)


def draw(strokes: Strokes, which: Tensor, hand: Hand = HAND, chunk: int | None = None) -> Tensor:
    """One drawing [64, 64] uint8 per index in `which`, ink bright; few at a time on a CPU, for its cache."""
    chunk = chunk or (128 if which.is_cuda else 1)
    out = torch.empty(len(which), SIDE, SIDE, dtype=torch.uint8, device=which.device)
    order = strokes.counts[which].argsort()  # like with like: the longest of a chunk sets its cost
    for part in order.split(chunk):
        rows = which[part]
        counts = strokes.counts[rows]
        lines = strokes.lines[rows, : int(counts.max())]
        there = torch.arange(lines.shape[1], device=rows.device) < counts[:, None]
        if hand.keep < 1:
            there &= torch.rand(there.shape, device=rows.device) < hand.keep
        out[part] = _ink(_unsteady(lines, there, hand), there, hand)
    return out


def scribble(count: int, device: Any) -> Tensor:
    """Strokes that mean nothing: random lines, few or many, straight or curly."""
    most = 10
    start, turn = torch.rand(count, most, 1, 2, device=device), torch.randn(count, most, POINTS, 2, device=device)
    reach = torch.rand(count, 1, 1, 1, device=device) * 0.12 + 0.02
    drift = torch.randn(count, most, 1, 2, device=device) * reach
    lines = start + (turn * reach * 0.7 + drift).cumsum(2)
    low, high = lines.amin((1, 2), keepdim=True), lines.amax((1, 2), keepdim=True)
    lines = (lines - low) / (high - low).amax(-1, keepdim=True)
    there = torch.arange(most, device=device) < torch.randint(1, most + 1, (count, 1), device=device)
    parts = [_ink(a, b, HAND) for a, b in zip(lines.split(128), there.split(128), strict=True)]
    return torch.cat(parts)


def _unsteady(lines: Tensor, there: Tensor, hand: Hand) -> Tensor:
    """Every stroke moved, turned, stretched, bent and cut a little; every other hand is neater than the next."""
    rows, strokes = lines.shape[:2]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=lines.device)

    sloppy = _between(hand.sloppy, rows, 1, 1, 1, device=lines.device)
    lines = _trim(lines)
    # Corners rounded: each point goes some way to the middle of its neighbours.
    soft = torch.rand(rows, 1, 1, 1, device=lines.device) * 0.9
    for _ in range(2):
        middle = (lines[:, :, :-2] + lines[:, :, 2:]) / 2
        lines = torch.cat([lines[:, :, :1], torch.lerp(lines[:, :, 1:-1], middle, soft), lines[:, :, -1:]], 2)
    # Parts of a character drift apart: everything from some stroke on moves together.
    later = torch.arange(strokes, device=lines.device) >= (
        torch.rand(rows, 1, device=lines.device) * there.sum(1, keepdim=True)
    )
    move, stretch = noise(rows, 1, 1, 2) * 0.02 * sloppy, 1 + noise(rows, 1, 1, 2) * 0.06 * sloppy
    lines = torch.where(later[:, :, None, None], (lines - 0.5) * stretch + 0.5 + move, lines)
    # Each stroke for itself.
    centre = lines.mean(2, keepdim=True)
    angle = noise(rows, strokes, 1) * 0.07 * sloppy[..., 0]
    sin, cos = angle.sin(), angle.cos()
    x, y = (lines - centre).unbind(-1)
    turned = torch.stack([x * cos - y * sin, x * sin + y * cos], -1) * (1 + noise(rows, strokes, 1, 2) * 0.09 * sloppy)
    along = lines[:, :, -1:] - lines[:, :, :1]
    across = torch.stack([-along[..., 1], along[..., 0]], -1)
    arc = 1 - torch.linspace(-1, 1, POINTS, device=lines.device).square()
    bend = across * arc[None, None, :, None] * noise(rows, strokes, 1, 1) * 0.05 * sloppy
    shift = noise(rows, strokes, 1, 2) * 0.014 * sloppy
    lines = centre + turned + bend + shift + noise(*lines.shape) * 0.003 * sloppy
    if hand.flow[1] <= 0:
        return lines
    return _flowing(lines, there, _between(hand.flow, rows, 1, 1, device=lines.device).clamp(min=0))


def _flowing(lines: Tensor, there: Tensor, flow: Tensor) -> Tensor:
    """The whole way of the pen smoothed, on the paper and above it, as in a fast hand.

    Every stroke has as many points as any other, so short ones, which take nearly as long to write as long ones, are
    rounded off as much: a box becomes a loop, four dots a wave, and strokes end on the way to the next.
    """
    rows, strokes = lines.shape[:2]
    above = torch.linspace(0, 1, ABOVE + 2, device=lines.device)[1:-1].view(1, 1, -1, 1)
    following = lines.roll(-1, 1)[:, :, :1]
    way = torch.cat([lines, torch.lerp(lines[:, :, -1:], following, above)], 2)
    moves = there & there.roll(-1, 1)
    moves[:, -1] = False
    real = torch.cat([there[..., None].expand(-1, -1, POINTS), moves[..., None].expand(-1, -1, ABOVE)], 2)
    way, real = way.flatten(1, 2), real.flatten(1, 2)[..., None].float()
    for _ in range(SMOOTHED):
        held = functional.pad(torch.cat([way * real, real], 2), (0, 0, 1, 1))
        sides = held[:, :-2] + held[:, 2:]
        middle = sides[..., :2] / sides[..., 2:].clamp(min=1)
        way = torch.where(sides[..., 2:] == 2, torch.lerp(way, middle, flow), way)  # both ends stay where they are
    return way.view(rows, strokes, POINTS + ABOVE, 2)[:, :, :POINTS]


def _trim(lines: Tensor) -> Tensor:
    """Strokes begin late and end early at times; hooks get lost so."""
    rows, strokes = lines.shape[:2]
    ends = torch.rand(2, rows, strokes, 1, device=lines.device) ** 3 * 0.2
    at = torch.linspace(0, 1, POINTS, device=lines.device) * (1 - ends[0] - ends[1]) + ends[0]
    place = (at * (POINTS - 1)).clamp(0, POINTS - 1.001)
    low = place.long()
    pick = low[..., None].expand(-1, -1, -1, 2)
    here, there = lines.gather(2, pick), lines.gather(2, pick + 1)
    return torch.lerp(here, there, (place - low)[..., None])


def _ink(lines: Tensor, there: Tensor, hand: Hand) -> Tensor:
    """Lines to pictures: bright where a pixel is nearer to a line than half the pen's width."""
    rows, strokes = lines.shape[:2]
    device = lines.device
    lines = lines * (SIDE * 0.84) + SIDE * 0.08
    pen = _between(hand.pen, rows, 1, 1, device=device)
    slope = torch.randn(rows, strokes, 1, device=device) * 0.25 * torch.linspace(-1, 1, POINTS - 1, device=device)
    width = pen * (1 + torch.randn(rows, strokes, 1, device=device) * 0.12 + slope).clamp(0.5, 1.6)
    width = torch.where(there[..., None], width, -99.0)
    start, end = [lines[:, :, :-1].flatten(1, 2)], [lines[:, :, 1:].flatten(1, 2)]
    widths = [width.flatten(1)]
    if strokes > 1:  # a hurried pen does not leave the paper between strokes
        hurry = _between(hand.hurry, rows, 1, device=device)
        linked = there[:, 1:] & there[:, :-1] & (torch.rand(rows, strokes - 1, device=device) < hurry)
        start.append(lines[:, :-1, -1])
        end.append(lines[:, 1:, 0])
        widths.append(torch.where(linked, pen[:, 0] * 0.6, -99.0))
    nearest = _reach(torch.cat(start, 1), torch.cat(end, 1), torch.cat(widths, 1))
    return ((nearest + 0.5).clamp(0, 1) * 255).to(torch.uint8).view(rows, SIDE, SIDE)


def _reach(start: Tensor, end: Tensor, width: Tensor) -> Tensor:
    """For each pixel how far inside the ink it is, in pixels (below zero: outside)."""
    axis = torch.arange(SIDE, device=start.device) + 0.5
    along = end - start
    square = along.square().sum(-1).clamp(min=1e-6)[..., None, None]
    dx, dy = axis - start[..., :1], axis - start[..., 1:]
    dot = (dx * along[..., :1])[..., None, :] + (dy * along[..., 1:])[..., None]
    share = (dot / square).clamp_(0, 1)
    # The square of the distance, multiplied out: rows and columns are then worked on singly, which is quicker.
    far = dx.square()[..., None, :] + dy.square()[..., None] + (share * square - 2 * dot) * share
    return (width[..., None, None] - far.clamp_(min=0).sqrt_()).amax(1)


def _between(ends: tuple[float, float], *shape: int, device: Any) -> Tensor:
    """Numbers evenly between two ends."""
    return torch.rand(*shape, device=device) * (ends[1] - ends[0]) + ends[0]
