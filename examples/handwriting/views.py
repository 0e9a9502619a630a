"""How the members see a picture: as it is, with its room shared out anew, or as edges; 64 x 64 grey in, planes out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE = 64


class Plain(nn.Identity):
    """The picture as it is."""

    planes = 1


class Evened(nn.Module):
    """Spreads a picture where strokes are dense and draws it together where they are few, along each axis by itself.

    Hands differ most in how they share out the room, so this takes much of the hand out of the picture. The density
    of a column is how often its rows change there; five eighths of the room are shared out by it, the rest evenly.
    """

    planes = 1

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # places of pixels need more than bfloat16
            x = x.float()
            across = (x[..., 1:] - x[..., :-1]).abs().sum(2)
            down = (x[..., 1:, :] - x[..., :-1, :]).abs().sum(3)
            return _by_density(down) @ x @ _by_density(across).transpose(2, 3)


class BalancedEdges(nn.Module):
    """Eight planes, each with the edges that face one way: what a pen's width and a faint ink change least.

    The picture is balanced before: the centre of its ink comes to the middle, and each side is stretched by how far
    ink spreads there. Unlike the frame around a character, neither is moved by one stroke that is too long.
    """

    planes = 8
    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        slope = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
        corner = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 1.0, 2.0]]) / 4
        turned = [torch.rot90(one, times) for times in range(4) for one in (slope, corner)]
        self.register_buffer("kernels", torch.stack(turned)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = _balanced(x.float())
        return functional.relu(functional.conv2d(x, self.kernels.to(x.dtype), padding=1))


class AllViews(nn.Module):
    """What all members see, for their teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.views = nn.ModuleList([Plain(), Evened(), BalancedEdges()])
        self.planes = sum(view.planes for view in self.views)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([view(x).float() for view in self.views], 1)


View = Plain | Evened | BalancedEdges | AllViews
VIEWS: dict[str, Callable[[], View]] = {"lite": Plain, "mobile_wide": Evened, "mobile_slim": BalancedEdges}
"""How each member sees the picture: who sees different things errs in different places."""


def _by_density(changes: Tensor) -> Tensor:
    """Matrices [n, 1, 64, 64] that resample an axis so that each place has the same share of these changes."""
    dense = functional.avg_pool1d(functional.pad(changes, (3, 4)), 7, 1, count_include_pad=True)
    dense = dense / (dense.mean(2, keepdim=True) + 1e-3) + 0.6
    share = dense / dense.sum(2, keepdim=True)
    begin = share.cumsum(2) - share
    wanted = ((torch.arange(SIDE, device=changes.device) + 0.5) / SIDE).view(1, 1, -1, 1)
    source = ((wanted - begin.unsqueeze(2)) / share.unsqueeze(2)).clamp(0, 1).sum(3, keepdim=True)
    return _from(source)


def _balanced(x: Tensor) -> Tensor:
    """The picture with the centre of its ink in the middle, and as much room on each side as ink spreads there."""
    ink = (x - x.mean((2, 3), keepdim=True)).clamp(min=0)  # not the grey of a poor scan
    down, across = _spread(ink.sum(3)), _spread(ink.sum(2))
    least = torch.maximum(down[1] + down[2], across[1] + across[2]) * 0.5  # or a single stroke would fill the frame
    return _by_balance(*down, least) @ x @ _by_balance(*across, least).transpose(2, 3)


def _spread(ink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ink [n, 1, 64] along an axis: its centre, and the room it takes before and after that, in pixels."""
    places = (torch.arange(SIDE, device=ink.device) + 0.5).view(1, 1, -1)
    ink = ink + 1e-4  # an empty picture has its centre in the middle
    whole = ink.sum(2, keepdim=True)
    middle = (ink * places).sum(2, keepdim=True) / whole
    before, after = (middle - places).clamp(min=0), (places - middle).clamp(min=0)
    # 2.2 times the spread of evenly laid ink is a little more than the half that holds it.
    room = [((ink * far.square()).sum(2, keepdim=True) * 2 / whole).sqrt() * 2.2 + 2 for far in (before, after)]
    return middle, room[0], room[1]


def _by_balance(middle: Tensor, before: Tensor, after: Tensor, least: Tensor) -> Tensor:
    """Matrices [n, 1, 64, 64] that resample an axis along a smooth curve through both ends and the centre."""
    room = torch.maximum(before + after, least)
    share = (before / (before + after)).clamp(0.3, 0.7)  # beyond a quarter the curve would turn back
    at = ((torch.arange(SIDE, device=middle.device) + 0.5) / SIDE).view(1, 1, -1)
    source = middle + room * ((1 - share) * at * (2 * at - 1) - share * (1 - at) * (1 - 2 * at))
    return _from(source.unsqueeze(3))


def _from(source: Tensor) -> Tensor:
    """Matrices [n, 1, 64, 64] that take each pixel from this place [n, 1, 64, 1], between its two neighbours."""
    places = (torch.arange(SIDE, device=source.device) + 0.5).view(1, 1, 1, -1)
    return (1 - (source - places).abs()).clamp(min=0)
