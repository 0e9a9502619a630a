"""From the network's chances to a sentence: when it is sure of an edit, and when the language model has a say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from language import Language
from sentences import START, Alphabet

_BEAM = 8
_LEAST = -4.0
"""Logarithm of the chance below which a replacement is not looked at."""


@dataclass(frozen=True)
class Limits:
    """How bold to be; tuned by evaluate.py on lines that the network was not trained on.

    A line's doubt is how little the network believes its characters, on average: minus the logarithm of their chances.
    Most lines of a good recogniser are below `doubt`, and only edits that the network is `sure` of are made there.
    Lines above are written anew, by the network and the language model, whose weight is `language`; what the recogniser
    wrote has a bonus of `keep`. Insertions are made there alone, from the chance `insert` on.
    """

    sure: float
    doubt: float
    keep: float
    language: float
    insert: float

    @classmethod
    def read(cls, file: Path) -> Limits:
        return cls(**json.loads(file.read_text()))


class Editor:
    """Makes the network's edits."""

    def __init__(self, alphabet: Alphabet, language: Language) -> None:
        self._alphabet = alphabet
        self._language = language

    def corrected(self, first: str, output: dict[str, Any], limits: Limits) -> str:
        """The first candidate after all edits that these limits allow."""
        if not first:
            return first
        rows = slice(1, len(first) + 1)
        own, numbers = output["candidates"][rows, 0], output["numbers"][rows]
        chances = output["chances"][rows]
        if -own.mean() < limits.doubt:
            is_new = (numbers[:, 0] > START) & (chances[:, 0] >= np.log(limits.sure))
            characters = self._alphabet.characters
            return "".join(characters[n] if new else c for c, n, new in zip(first, numbers[:, 0], is_new, strict=True))
        written = self._written_anew(first, own + limits.keep, numbers[:, :-1], chances, limits.language)
        return self._with_insertions(written, output, limits.insert)

    def _written_anew(self, first: str, own: Any, numbers: Any, chances: Any, weight: float) -> str:
        """The likeliest sentence: at each place what stood there or what the network offers, best paths first."""
        pairs, lasts = self._language.start()
        scores, texts = np.zeros(1), [""]
        for place, character in enumerate(first):
            offered = self._alphabet.number.get(character, 1)
            is_open = (chances[place] > _LEAST) & (numbers[place] > START) & (numbers[place] != offered)
            options = np.concatenate(([offered], numbers[place][is_open]))
            worth = np.concatenate(([own[place]], chances[place][is_open]))
            said, found = self._language.after(pairs, lasts, options)
            total = (scores[:, None] + worth + weight * said).ravel()
            best = np.argsort(-total)[:_BEAM]
            before, chosen = np.divmod(best, len(options))
            scores, pairs, lasts = total[best], found.ravel()[best], options[chosen]
            characters = [character, *(self._alphabet.characters[n] for n in options[1:])]
            texts = [texts[b] + characters[c] for b, c in zip(before.tolist(), chosen.tolist(), strict=True)]
        return texts[0]

    def _with_insertions(self, written: str, output: dict[str, Any], least: float) -> str:
        rows = len(written) + 1
        is_in = output["insertions"][:rows, 0] >= np.log(least)
        numbers = output["numbers"][:rows, -1]
        added = [self._alphabet.characters[n] if put else "" for n, put in zip(numbers, is_in, strict=True)]
        return added[0] + "".join(c + a for c, a in zip(written, added[1:], strict=True))
