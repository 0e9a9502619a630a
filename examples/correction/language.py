"""A small language model: how likely one character is after two others, in arrays that load in a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sentences import START

_BITS = 13
"""Of a character's number; a pair's key holds two of them, a triple's the place of its pair and one."""
_STEP = 1 / 16
"""Logarithms are kept as whole multiples of this, in one byte."""


class Language:
    """Chances of characters by the two before them, falling back to one and to none (Witten and Bell's way)."""

    def __init__(self, file: Path) -> None:
        arrays = np.load(file)
        self._single, self._single_less = (arrays[name] * -_STEP for name in ("single", "single_less"))
        self._pairs, self._triples = (np.cumsum(arrays[name], dtype=np.int64) for name in ("pairs", "triples"))
        self._pair, self._pair_less, self._triple = (
            arrays[name].astype(np.float32) * -_STEP for name in ("pair", "pair_less", "triple")
        )

    def start(self) -> tuple[Any, Any]:
        """Where every sentence starts: the last pair's place, and the last character."""
        return self._find(self._pairs, np.array([START << _BITS | START])), np.array([START])

    def after(self, pairs: Any, lasts: Any, numbers: Any) -> tuple[Any, Any]:
        """For each state (rows) and each next character (columns): its chance, and the place of the new pair."""
        found = self._find(self._pairs, lasts[:, None] << _BITS | numbers)
        chance = np.where(found >= 0, self._pair[found], self._single_less[lasts][:, None] + self._single[numbers])
        triples = self._find(self._triples, pairs[:, None] << _BITS | numbers)
        is_known = pairs[:, None] >= 0
        less = np.where(is_known, self._pair_less[pairs][:, None], 0.0)
        return np.where(is_known & (triples >= 0), self._triple[triples], less + chance), found

    def _find(self, keys: Any, wanted: Any) -> Any:
        """Places of the keys; -1 for those that are not there."""
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, places, -1)


def write_language(file: Path, sentences: Iterable[list[int]], words: Iterable[tuple[list[int], float]]) -> None:
    """Count sentences and weighted words, both as numbers of characters; a triple seen once is not kept."""
    counts: list[Counter[tuple[int, ...]]] = [Counter(), Counter(), Counter()]
    for sentence in sentences:
        _count(counts, [START, START, *sentence], 2, 1.0)
    for word, weight in words:
        _count(counts, word, 0, weight)
    counts[1][START, START] += 1  # so that the start is a pair like any other
    counts[2] = Counter({triple: count for triple, count in counts[2].items() if count > 1.5})
    singles = np.zeros(1 << _BITS)
    for (number,), count in counts[0].items():
        singles[number] = count
    single = np.log((singles + 0.1) / (singles.sum() + 0.1 * len(singles)))
    pairs, pair, single_less = _level(counts[1], lambda rest: single[rest[-1]])
    places = {key: place for place, key in enumerate(pairs)}
    triples, triple, pair_less = _level(counts[2], lambda rest: pair[places[rest]])
    pair_keys = np.array([a << _BITS | b for a, b in pairs])
    triple_keys = np.array([places[a, b] << _BITS | c for a, b, c in triples])
    order = np.argsort(triple_keys)
    np.savez_compressed(
        file,
        single=_byte(single),
        single_less=_byte([single_less.get((number,), 0.0) for number in range(1 << _BITS)]),
        pairs=np.diff(pair_keys, prepend=0).astype(np.uint32),
        pair=_byte(pair),
        pair_less=_byte([pair_less.get(key, 0.0) for key in pairs]),
        triples=np.diff(triple_keys[order], prepend=0).astype(np.uint32),
        triple=_byte(triple)[order],
    )


def _count(counts: list[Counter[tuple[int, ...]]], numbers: list[int], first: int, weight: float) -> None:
    for end in range(first, len(numbers)):
        for length in range(1, min(3, end + 1) + 1):
            counts[length - 1][tuple(numbers[end - length + 1 : end + 1])] += weight  # type: ignore[assignment]


def _level(counts: Counter[tuple[int, ...]], shorter: Any) -> tuple[list[Any], Any, dict[Any, float]]:
    """Sorted keys, their log-chances, and per context the logarithm of what is left for what was not seen after it."""
    total: Counter[tuple[int, ...]] = Counter()
    kinds: Counter[tuple[int, ...]] = Counter()
    for key, count in counts.items():
        total[key[:-1]] += count
        kinds[key[:-1]] += 1
    keys = sorted(counts)
    chances = []
    for key in keys:
        kind, context = kinds[key[:-1]], total[key[:-1]]
        chances.append((counts[key] + kind * np.exp(shorter(key[1:]))) / (context + kind))
    less = {context: float(np.log(kinds[context] / (total[context] + kinds[context]))) for context in total}
    return keys, np.log(np.array(chances)), less


def _byte(logarithms: Any) -> Any:
    return np.clip(np.round(np.asarray(logarithms) / -_STEP), 0, 255).astype(np.uint8)
