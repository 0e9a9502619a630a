"""The corrector: a small transformer that reads all candidates at once and edits every place in one pass."""

from __future__ import annotations

import re

import torch
from sentences import CANDIDATES, NOTHING, PAD, UNKNOWN, Alphabet
from torch import Tensor, nn
from torch.nn import functional

LONGEST = 41
"""Rows of a table: forty characters and the start."""
_FAR = 12
"""Places farther apart than this look equally far."""
_BEST = 4
"""How many replacements of each place come out."""


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.questions_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.questions_keys_values(self.before_attention(x))
        parts = parts.reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + bias).softmax(-1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.attended(mixed))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.before_wide(x)))))


class Corrector(nn.Module):
    def __init__(
        self, alphabet: Alphabet, *, width: int = 320, layers: int = 6, heads: int = 8, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.shape = {"width": width, "layers": layers, "heads": heads}
        self.heads = heads
        self.character = nn.Embedding(len(alphabet.characters), width)
        # A syllable is its initial and its final, so that what is learned of one syllable helps its neighbours.
        halves = [re.fullmatch(r"(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw]?)(.*)", s) for s in alphabet.syllables]
        pairs = [half.groups() if half else ("", "") for half in halves]
        initials, finals = sorted({a for a, _ in pairs}), sorted({b for _, b in pairs})
        self.initial, self.final = nn.Embedding(len(initials), width), nn.Embedding(len(finals), width)
        self.tone = nn.Embedding(6, width)
        self.register_buffer("initials", torch.tensor([initials.index(a) for a, _ in pairs]), persistent=False)
        self.register_buffer("finals", torch.tensor([finals.index(b) for _, b in pairs]), persistent=False)
        sounds = torch.tensor([alphabet.sound(character) for character in alphabet.characters])
        self.register_buffer("usual", sounds, persistent=False)
        for table in (self.character, self.initial, self.final, self.tone):
            nn.init.normal_(table.weight, std=0.02)
        self.ranks = nn.Parameter(torch.zeros(2, CANDIDATES))
        self.others = nn.Linear(2 * width, width)
        self.near = nn.Embedding(2 * _FAR + 1, heads)
        apart = torch.arange(LONGEST)[None] - torch.arange(LONGEST)[:, None]
        self.register_buffer("apart", apart.clamp(-_FAR, _FAR) + _FAR, persistent=False)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.last = nn.LayerNorm(width)
        self.replacing, self.inserting = nn.Linear(width, width), nn.Linear(width, width)
        self.replacing_bias = nn.Parameter(torch.zeros(len(alphabet.characters)))
        self.inserting_bias = nn.Parameter(torch.zeros(len(alphabet.characters)))

    def syllable_table(self) -> Tensor:
        return self.initial.weight[self.initials] + self.final.weight[self.finals]

    def character_table(self) -> Tensor:
        """Each character with its usual sound; the same table reads and writes."""
        return self.character.weight + self.syllable_table()[self.usual[:, 0]] + self.tone.weight[self.usual[:, 1]]

    def look_up(self, characters: Tensor) -> Tensor:
        return functional.embedding(characters, self.character_table())

    def forward(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of every character at every place: in its stead, and after it."""
        characters, written = tables[..., :CANDIDATES], self.character_table()
        seen = self.look_up(characters)
        others = torch.einsum("blcw,kc->blkw", seen, self.ranks.softmax(-1)).flatten(2)
        scale = written.shape[1] ** 0.5
        heard = functional.embedding(tables[..., CANDIDATES], self.syllable_table()) + self.tone(
            tables[..., CANDIDATES + 1]
        )
        x = self.dropout(scale * (seen[:, :, 0] + heard + self.others(others)))
        length = tables.shape[1]
        bias = self.near(self.apart[:length, :length]).permute(2, 0, 1)[None]
        bias = bias.masked_fill((characters[:, None, None, :, 0] == PAD), -1e4)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.last(x)
        scores = functional.linear(torch.stack((self.replacing(x), self.inserting(x)), 2), written)
        scores = scores + torch.stack((self.replacing_bias, self.inserting_bias))
        return scores[:, :, 0], scores[:, :, 1]


class Served(nn.Module):
    """What is exported: the tables worked out once, and of each place the best edits and the candidates' chances."""

    def __init__(self, corrector: Corrector) -> None:
        super().__init__()
        self.corrector = corrector
        written = corrector.character_table().detach()
        # Reading from eight bits per number: the quantiser packs products, not look-ups.
        scales = written.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        self.register_buffer("written", written)
        self.register_buffer("scales", scales)
        self.register_buffer("packed", (written / scales).round().to(torch.int8))
        self.register_buffer("syllables", corrector.syllable_table().detach())
        corrector.character_table = lambda: self.written  # type: ignore[method-assign]
        corrector.syllable_table = lambda: self.syllables  # type: ignore[method-assign]
        corrector.look_up = self._look_up  # type: ignore[method-assign]

    def _look_up(self, characters: Tensor) -> Tensor:
        return self.packed[characters].float() * self.scales[characters]

    def forward(self, tables: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers of the best replacements and of the best insertion after each place; as logarithms the chances of
        these replacements, of each candidate's character, of that insertion and of none."""
        replacing, inserting = self.corrector(tables)
        replacing, inserting = replacing.log_softmax(-1), inserting.log_softmax(-1)
        chances, best = replacing.topk(_BEST, -1)
        candidates = replacing.gather(-1, tables[..., :CANDIDATES])
        hidden = torch.zeros(inserting.shape[-1])
        hidden[[PAD, UNKNOWN, NOTHING]] = -1e4
        insertion, character = (inserting + hidden).topk(1, -1)
        insertions = torch.cat((insertion, inserting[..., NOTHING : NOTHING + 1]), -1)
        return torch.cat((best, character), -1), chances, candidates, insertions
