"""What happens to a character on its way: a slanted hand, a poor pen, a form's lines, a neighbour, a poor scan."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

FILL = 0.86
"""The longer side of a character's ink takes this share of the frame; the served model cuts pictures out so too."""


def centred(x: Tensor) -> Tensor:
    """Each picture [n, 1, 64, 64] moved and scaled so that its ink fills `FILL` of the frame."""
    ink = x[:, 0] > 0.35
    spans = []
    for axis in (1, 2):  # rows seen from the side, then columns from above: gives x, then y
        seen = ink.any(axis)
        size = seen.shape[1]
        first = seen.float().argmax(1)
        last = size - 1 - seen.flip(1).float().argmax(1)
        blank = ~seen.any(1)
        spans.append((first.masked_fill(blank, 0), last.masked_fill(blank, size - 1)))
    (left, right), (top, bottom) = spans
    side = torch.maximum(right - left, bottom - top).float() + 1
    size = x.shape[-1]
    scale = side / size / FILL
    middle = [((low + high + 1).float() / size - 1) for low, high in spans]
    nought = torch.zeros_like(scale)
    matrix = torch.stack([torch.stack([scale, nought, middle[0]], 1), torch.stack([nought, scale, middle[1]], 1)], 1)
    return functional.grid_sample(x, _grid(matrix, size), align_corners=False)


def spoil(x: Tensor) -> Tensor:
    """A batch [n, 1, 64, 64] of clean ink in 0..1, each picture spoilt in its own way."""
    x = slant(x)
    x = _pen(x)
    x = _neighbour(x)
    x = _form_lines(x)
    x = _fade(x)
    x = _blur(x)
    x = x + torch.randn_like(x) * _some(x, 0.0, 0.08) * _often(x, 0.6)
    x = _jpeg(x.clamp(0, 1))
    return _stretch(x)


def bent(x: Tensor) -> Tensor:
    """Clean ink in another hand: slanted, bent as rubber once or twice, by a thicker or a thinner pen; centred."""
    twice = torch.rand(len(x), device=x.device) < 0.4
    x = slant(x)
    x = torch.where(twice[:, None, None, None], centred(slant(centred(x))), x)
    return centred(_pen(x)).clamp(0, 1)


def nudge(x: Tensor) -> Tensor:
    """Prepared pictures seen again: a little moved, turned, stretched and toned."""
    n = len(x)
    angle = torch.randn(n, device=x.device).clamp(-2, 2) * 0.025
    wide, high = (_some(x, 0.94, 1.06, 1)[:, 0] for _ in range(2))
    shift = _some(x, -0.04, 0.04, 2)
    first = torch.stack([angle.cos() * wide, -angle.sin() * high, shift[:, 0]], 1)
    second = torch.stack([angle.sin() * wide, angle.cos() * high, shift[:, 1]], 1)
    x = functional.grid_sample(x, _grid(torch.stack([first, second], 1), x.shape[-1]), align_corners=False)
    return x.clamp(0, 1) ** _some(x, 0.75, 1.3)


def _some(x: Tensor, low: float, high: float, *shape: int) -> Tensor:
    """One number per picture, evenly between low and high."""
    return torch.rand(len(x), *(shape or (1, 1, 1)), device=x.device) * (high - low) + low


def _often(x: Tensor, share: float) -> Tensor:
    """1 for about this share of the pictures, 0 for the others."""
    return (torch.rand(len(x), 1, 1, 1, device=x.device) < share).float()


def _grid(matrix: Tensor, size: int) -> Tensor:
    return functional.affine_grid(matrix, [len(matrix), 1, size, size], align_corners=False)


def slant(x: Tensor) -> Tensor:
    """Turned, sheared, stretched, shifted, and bent as if the paper were rubber."""
    n, size = len(x), x.shape[-1]
    angle = torch.randn(n, device=x.device).clamp(-2.5, 2.5) * 0.07
    shear = torch.randn(n, device=x.device).clamp(-2.5, 2.5) * 0.09
    grow = 1 / _some(x, 0.72, 1.12, 1)[:, 0]
    wide, high = (grow * torch.exp(torch.randn(n, device=x.device) * 0.07) for _ in range(2))
    shift = torch.randn(n, 2, device=x.device).clamp(-2, 2) * 0.07
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([cos * wide, (shear * cos - sin) * high, shift[:, 0]], 1)
    second = torch.stack([sin * wide, (shear * sin + cos) * high, shift[:, 1]], 1)
    grid = _grid(torch.stack([first, second], 1), size)
    for cells, reach in ((4, 0.06), (7, 0.035)):
        bend = torch.randn(n, 2, cells, cells, device=x.device) * _some(x, 0, reach)
        grid = grid + functional.interpolate(bend, size=size, mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    return functional.grid_sample(x, grid, align_corners=False)


def _pen(x: Tensor) -> Tensor:
    """A thicker or a thinner pen."""
    change = _some(x, -0.7, 0.8)
    thick = functional.max_pool2d(x, 3, 1, 1)
    thin = -functional.max_pool2d(-x, 3, 1, 1)
    return torch.where(change > 0, torch.lerp(x, thick, change.clamp(min=0)), torch.lerp(x, thin, -change.clamp(max=0)))


def _neighbour(x: Tensor) -> Tensor:
    """The edge of another character at one side, for one picture in four."""
    other = x.roll(1, 0)
    size = x.shape[-1]
    theta = torch.zeros(len(x), 2, 3, device=x.device)
    theta[:, 0, 0] = theta[:, 1, 1] = 1
    far = _some(x, 1.45, 1.85, 1)[:, 0] * (torch.randint(0, 2, (len(x),), device=x.device) * 2 - 1)
    side = torch.rand(len(x), device=x.device) < 0.5
    theta[:, 0, 2], theta[:, 1, 2] = torch.where(side, far, 0.0), torch.where(side, 0.0, far)
    moved = functional.grid_sample(other, _grid(theta, size), align_corners=False)
    return torch.maximum(x, moved * _often(x, 0.25))


def _form_lines(x: Tensor) -> Tensor:
    """Printed lines of the form: mostly near the edges, now and then through the character; thin or thick."""
    axis = torch.linspace(-1, 1, x.shape[-1], device=x.device)
    for share, inside in ((0.22, False), (0.1, False), (0.05, True)):
        place = _some(x, -0.9, 0.9) if inside else _some(x, 0.78, 1.0) * (_often(x, 0.5) * 2 - 1)
        tilt = torch.randn(len(x), 1, 1, 1, device=x.device) * 0.02
        across = _often(x, 0.5)
        rows, columns = axis.view(1, 1, -1, 1), axis.view(1, 1, 1, -1)
        distance = torch.where(across > 0, rows - place - tilt * columns, columns - place - tilt * rows).abs()
        half = _some(x, 0.005, 0.035)
        line = ((half - distance) * 32 + 0.5).clamp(0, 1) * _some(x, 0.3, 1.0) * _often(x, share)
        x = torch.maximum(x, line)
    return x


def _fade(x: Tensor) -> Tensor:
    """Uneven ink: paler here than there."""
    cells = torch.rand(len(x), 1, 4, 4, device=x.device) * _some(x, 0, 0.6)
    return x * (1 - functional.interpolate(cells, size=x.shape[-1], mode="bilinear", align_corners=True))


def _blur(x: Tensor) -> Tensor:
    """Out of focus, or scanned at half the resolution."""
    small = functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
    soft = functional.avg_pool2d(functional.avg_pool2d(x, 3, 1, 1), 3, 1, 1)
    x = torch.lerp(x, soft, _some(x, 0, 0.8) * _often(x, 0.4))
    return torch.lerp(x, small, _some(x, 0.3, 1.0) * _often(x, 0.2))


def _cosines() -> Tensor:
    """The 8 x 8 matrix of the cosine transform that JPEG rounds in."""
    rows = [[math.cos((2 * place + 1) * wave * math.pi / 16) for place in range(8)] for wave in range(8)]
    matrix = torch.tensor(rows) * 0.5
    matrix[0] /= math.sqrt(2)
    return matrix


def _jpeg(x: Tensor) -> Tensor:
    """Rounded as JPEG rounds, more coarsely for fine waves, in half of the pictures."""
    n, size = len(x), x.shape[-1]
    cosines = _cosines().to(x)
    cells = x.view(n, size // 8, 8, size // 8, 8).permute(0, 1, 3, 2, 4)
    waves = cosines @ cells @ cosines.T
    wave = torch.arange(8, device=x.device)
    coarse = (0.06 + 0.05 * (wave[:, None] + wave[None])) * _some(x, 0.1, 2.0, 1, 1, 1, 1)
    rounded = torch.round(waves / coarse) * coarse
    back = (cosines.T @ rounded @ cosines).permute(0, 1, 3, 2, 4).reshape(n, 1, size, size)
    return torch.where(_often(x, 0.5) > 0, back, x)


def _stretch(x: Tensor) -> Tensor:
    """Contrast as the served model stretches it: the palest to 0, the darkest to 1; then a change of tone."""
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    x = (x - low) / (high - low).clamp(min=0.15)
    return x.clamp(0, 1) ** _some(x, 0.7, 1.5)


def to_ink(pictures: Tensor) -> Tensor:
    """Stored bytes [n, 64, 64] to ink [n, 1, 64, 64] in 0..1."""
    return pictures[:, None].float() / 255
