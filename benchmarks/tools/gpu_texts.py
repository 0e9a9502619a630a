"""Texts for the GPU benchmark: an encoder, and a corrector that writes its sentence token by token inside one graph."""

from functools import cache
from typing import Any

import numpy as np

VOCABULARY = 6000


@cache
def _classes() -> tuple[Any, Any]:
    import torch
    from torch.nn import functional

    class Attention(torch.nn.Module):  # type: ignore[misc]
        """Queries of one text, keys and values of another or the same; `mask` is true where there is something."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.ask = torch.nn.Linear(width, width)
            self.tell = torch.nn.Linear(width, 2 * width)
            self.out = torch.nn.Linear(width, width)

        def keys(self, memory: Any) -> Any:
            return [self._split(part) for part in self.tell(memory).chunk(2, -1)]

        def forward(self, x: Any, keys: Any, mask: Any) -> Any:
            key, value = keys
            made = functional.scaled_dot_product_attention(self._split(self.ask(x)), key, value, attn_mask=mask)
            return self.out(made.transpose(1, 2).flatten(2))

        def _split(self, x: Any) -> Any:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int, *, has_memory: bool) -> None:
            super().__init__()
            self.own, self.other = Attention(width, heads), Attention(width, heads) if has_memory else None
            self.feed = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
            )
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(3))

        def forward(self, x: Any, keys: Any, mask: Any, memory: Any = None, memory_mask: Any = None) -> Any:
            x = x + self.own(self.norms[0](x), keys, mask)
            if self.other is not None:
                x = x + self.other(self.norms[1](x), memory, memory_mask)
            return x + self.feed(self.norms[2](x))

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        """Tokens to one vector for each; token 0 is padding."""

        def __init__(self, width: int, layers: int, heads: int, longest: int, seed: int = 0) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.words = torch.nn.Embedding(VOCABULARY, width, padding_idx=0)
            self.places = torch.nn.Parameter(torch.randn(longest, width) * 0.02)
            self.layers = torch.nn.ModuleList(Layer(width, heads, has_memory=False) for _ in range(layers))

        def forward(self, tokens: Any) -> Any:
            x, mask = self.words(tokens) + self.places[: tokens.shape[1]], self.mask(tokens)
            for layer in self.layers:
                x = layer(x, layer.own.keys(layer.norms[0](x)), mask)
            return x

        def mask(self, tokens: Any) -> Any:
            # A row of padding alone looks at itself: nothing at all would give numbers that are none.
            return (tokens != 0)[:, None, None, :] | (tokens == 0).all(1)[:, None, None, None]

    class Corrector(torch.nn.Module):  # type: ignore[misc]
        """Tokens to tokens, greedily. How many steps that takes is in the shape alone, so all are captured."""

        def __init__(self, width: int = 512, layers: int = 6, heads: int = 8, longest: int = 64, seed: int = 0) -> None:
            super().__init__()
            self.encoder = Encoder(width, layers, heads, longest, seed)
            self.layers = torch.nn.ModuleList(Layer(width, heads, has_memory=True) for _ in range(layers))

        def forward(self, tokens: Any) -> Any:
            encoder: Any = self.encoder
            count, steps = tokens.shape
            memory, mask = encoder(tokens), encoder.mask(tokens)
            others = [layer.other.keys(memory) for layer in self.layers]
            shape = (count, self.layers[0].own.heads, steps, memory.shape[2] // self.layers[0].own.heads)
            kept = [(memory.new_zeros(shape), memory.new_zeros(shape)) for _ in self.layers]
            word, said = tokens.new_ones(count), []
            for step in range(steps):
                x = (encoder.words(word) + encoder.places[step])[:, None]
                for layer, other, own in zip(self.layers, others, kept, strict=True):
                    for all_of_them, new in zip(own, layer.own.keys(layer.norms[0](x)), strict=True):
                        all_of_them[:, :, step : step + 1] = new
                    x = layer(x, [part[:, :, : step + 1] for part in own], None, other, mask)
                word = (x[:, 0] @ encoder.words.weight.T).argmax(-1)
                said.append(word)
            return torch.stack(said, 1)

    return Encoder, Corrector


def encoder(width: int = 512, layers: int = 6, longest: int = 512) -> Any:
    return _classes()[0](width, layers, 8, longest)


def corrector(width: int = 512, layers: int = 6, longest: int = 64) -> Any:
    return _classes()[1](width, layers, 8, longest)


def texts(count: int, shortest: int, longest: int, seed: int) -> Any:
    """Tokens of texts of different lengths, padded to the longest of them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, count)
    made = np.zeros((count, lengths.max()), np.int64)
    for row, length in zip(made, lengths, strict=True):
        row[:length] = rng.integers(1, VOCABULARY, length)
    return made
