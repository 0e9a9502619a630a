"""Texts from clients to arrays: one spelling, a vocabulary of characters, and padding with a mask."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from timebound.errors import SetupError

PAD, UNKNOWN = 0, 1
"""The numbers that no character has: nothing is there, and something that the vocabulary does not know."""


def normalise(text: str) -> str:
    """The text as it looks: NFC (an accent typed apart joins its letter), outer blanks cut, inner ones single."""
    return " ".join(unicodedata.normalize("NFC", text).split())


class Vocabulary:
    """Numbers for characters: 0 is padding, 1 any unknown character, then `characters` in their order."""

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(dict.fromkeys("".join(characters)))
        if not self.characters:
            raise SetupError("Vocabulary() needs at least one character")
        self._numbers = {character: number for number, character in enumerate(self.characters, start=2)}

    def __len__(self) -> int:
        """How many numbers there are, padding and unknown included: the rows of an embedding."""
        return len(self.characters) + 2

    def encode(self, text: str, length: int | None = None) -> Any:
        """The text as int64 numbers; with a `length` it is cut or padded to exactly that."""
        numbers = [self._numbers.get(character, UNKNOWN) for character in text[:length]]
        if length is not None:
            numbers += [PAD] * (length - len(numbers))
        return np.array(numbers, dtype=np.int64)

    def decode(self, numbers: Iterable[int], *, unknown: str = "?") -> str:
        """The characters of numbers; padding is left out."""
        known = [int(number) for number in numbers if int(number) != PAD]
        return "".join(self.characters[number - 2] if number >= 2 else unknown for number in known)


def pad(arrays: Sequence[Any], *, multiple: int = 1, length: int | None = None, value: float = PAD) -> tuple[Any, Any]:
    """Arrays of different lengths as one batch (n, longest, ...), and its mask (n, longest): True where something is.

    The longest is rounded up to a `multiple`, so that few shapes occur; `length` sets it, and cuts what is longer.
    """
    if not len(arrays):
        raise ValueError("pad() needs at least one array")
    rows = [np.asarray(array) for array in arrays]
    longest = max(len(row) for row in rows) if length is None else length
    longest = max(1, -(-longest // multiple) * multiple)
    full = [row for row in rows if len(row)] or rows  # an empty list does not say what it is a list of
    batch = np.full((len(rows), longest, *full[0].shape[1:]), value, dtype=np.result_type(*full))
    mask = np.zeros((len(rows), longest), dtype=np.bool_)
    for place, row in enumerate(rows):
        part = row[:length]
        if not len(part):
            continue
        batch[place, : len(part)] = part
        mask[place, : len(part)] = True
    return batch, mask
