"""The network in torch: several copies of one small BERT side by side, since one alone leaves a GPU idle.

Every weight has a first axis of copies. After `coarsen`, weights and inputs of each product are rounded as the served
file rounds them (4 and 8 bits), and gradients pass as if they were not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, CLASSES = 384, 12, 3
BITS = 4
"""Of a weight as it is stored."""
MATRICES = ("look", "mix", "widen", "narrow")
"""Of each layer; `look` is query, key and value in one."""


class Copies(nn.Module):
    """`copies` networks that start from the same weights and are trained apart."""

    pieces: Tensor
    places: Tensor
    head: Tensor
    head_bias: Tensor

    def __init__(self, start: dict[str, Tensor], copies: int) -> None:
        super().__init__()
        self.copies = copies
        self._steps: dict[str, Tensor] = {}
        self.layers = 1 + max(int(name.split("_")[0][5:]) for name in start if name.startswith("layer"))
        for name, value in start.items():
            self.register_parameter(name, nn.Parameter(value.float().expand(copies, *value.shape).clone()))

    def coarsen(self) -> None:
        """Round from now on, in steps that are fixed now."""
        names = ["pieces", *(f"layer{layer}_{part}" for layer in range(self.layers) for part in MATRICES)]
        self._steps = {name: row_step(getattr(self, name)) for name in names}

    @property
    def rounded(self) -> set[str]:
        """The names of the matrices that are rounded."""
        return set(self._steps)

    def codes(self, name: str) -> tuple[Tensor, Tensor]:
        """A rounded matrix of the first copy as whole numbers, and each row's step."""
        weight, step = getattr(self, name).detach()[0], self._steps[name][0]
        return _whole(weight, step), step

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [copies, batch, 3] of ids [copies, batch, length]; 0 is padding."""
        hidden, known = self.encode(ids)
        weight = known.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(2) / weight.sum(2)
        pooled = functional.dropout(pooled, 0.1, self.training)
        return torch.baddbmm(self.head_bias.unsqueeze(1), pooled.float(), self.head.transpose(1, 2))

    def encode(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the network makes of each piece, and which pieces are no padding."""
        copies, batch, length = ids.shape
        known = ids != 0
        table = self._weight("pieces")
        offset = torch.arange(copies, device=ids.device).view(-1, 1, 1) * table.shape[1]
        hidden = functional.embedding(ids + offset, table.flatten(0, 1)) + self.places[:, None, :length]
        hidden = self._normal(hidden.flatten(1, 2), "first")
        hidden = functional.dropout(hidden, 0.1, self.training)
        # Padding must not be looked at; a post's own pieces may all be.
        mask = known.flatten(0, 1)[:, None, None, :]
        for layer in range(self.layers):
            hidden = self._layer(hidden, f"layer{layer}_", mask, length)
        return hidden.view(copies, batch, length, WIDTH), known

    def _layer(self, hidden: Tensor, name: str, mask: Tensor, length: int) -> Tensor:
        heads = self._product(hidden, name + "look").view(-1, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.transpose(1, 3).unbind(2)
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=0.1 if self.training else 0.0
        )
        seen = seen.transpose(1, 2).reshape(hidden.shape)
        hidden = self._added(hidden, self._product(seen, name + "mix"), name + "after_mix")
        wide = functional.gelu(self._product(hidden, name + "widen"))
        return self._added(hidden, self._product(wide, name + "narrow"), name + "after_narrow")

    def _product(self, inputs: Tensor, name: str) -> Tensor:
        bias = getattr(self, name + "_bias").unsqueeze(1)
        if self._steps:
            inputs = _rounded_inputs(inputs)
        return torch.baddbmm(bias, inputs, self._weight(name).transpose(1, 2))

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = getattr(self, name)
        if not self._steps:
            return weight
        with torch.no_grad():
            change = _whole(weight, self._steps[name]) * self._steps[name] - weight
        return weight + change

    def _added(self, hidden: Tensor, more: Tensor, name: str) -> Tensor:
        return self._normal(hidden + functional.dropout(more, 0.1, self.training), name)

    def _normal(self, hidden: Tensor, name: str) -> Tensor:
        scale, shift = getattr(self, name + "_scale"), getattr(self, name + "_shift")
        return torch.addcmul(
            shift.unsqueeze(1), functional.layer_norm(hidden.float(), (WIDTH,), eps=1e-12), scale.unsqueeze(1)
        )

    def average(self) -> dict[str, Tensor]:
        """The mean of all copies' weights. They began alike, so it is a good network too, and mostly a better one."""
        return {name: value.detach().mean(0) for name, value in self.named_parameters()}


def new_head(seed: int) -> dict[str, Tensor]:
    """A last layer that knows nothing yet."""
    chance = torch.Generator().manual_seed(seed)
    return {"head": torch.randn(CLASSES, WIDTH, generator=chance) / math.sqrt(WIDTH), "head_bias": torch.zeros(CLASSES)}


@torch.no_grad()
def row_step(weight: Tensor) -> Tensor:
    """The step of each row's grid: of a few shares of the row's largest value, the one that rounds with least error."""
    top = 2 ** (BITS - 1) - 1
    largest = weight.abs().amax(-1, keepdim=True).clamp_min(1e-8)
    best: Tensor = largest / top
    least = torch.full_like(largest, math.inf)
    for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        step = largest * share / top
        error = (_whole(weight, step) * step - weight).square().sum(-1, keepdim=True)
        best = torch.where(error < least, step, best)
        least = torch.minimum(error, least)
    return best


def _whole(weight: Tensor, step: Tensor) -> Tensor:
    top = 2 ** (BITS - 1) - 1
    whole: Tensor = (weight / step).round().clamp(-top, top)
    return whole


def _rounded_inputs(inputs: Tensor) -> Tensor:
    """To 256 steps between the least and the greatest value of the batch."""
    with torch.no_grad():
        low, high = inputs.amin((1, 2), keepdim=True).clamp_max(0), inputs.amax((1, 2), keepdim=True).clamp_min(0)
        step = ((high - low) / 255).clamp_min(1e-8).float()
        change = (inputs.float() / step).round() * step - inputs
    return inputs + change.to(inputs.dtype)
