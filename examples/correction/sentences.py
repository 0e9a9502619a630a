"""What the network reads and writes: characters and sounds as numbers, candidates side by side, edits back to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CANDIDATES = 10
LONGEST = 40
"""Characters; the network has seen no longer sentence."""
COLUMNS = CANDIDATES + 2
"""One row per place of the first candidate: each candidate's character there, then syllable and tone."""
PAD, UNKNOWN, NOTHING, START = range(4)
"""Characters that are none. NOTHING is what a deleted character turns into, and what is mostly inserted."""
SPECIAL = ("<pad>", "<unknown>", "<nothing>", "<start>")


class Alphabet:
    """Characters and their usual sounds, and the sounds' phonemes."""

    def __init__(self, characters: Path, phonemes: Path) -> None:
        rows = [row.split("\t") for row in characters.read_text(encoding="utf-8").splitlines()]
        self.characters = [*SPECIAL, *(row[0] for row in rows)]
        self.number = {character: number for number, character in enumerate(self.characters)}
        spelled = json.loads(phonemes.read_text(encoding="utf-8"))
        self.syllables = ["", *spelled]
        numbers = {syllable: number for number, syllable in enumerate(self.syllables)}
        self._spelled = {spelling: numbers[syllable] for syllable, spelling in spelled.items()}
        self._sound = {row[0]: (numbers.get(row[1].rstrip("12345"), 0), _tone(row[1])) for row in rows}

    def sound(self, character: str) -> tuple[int, int]:
        """The usual syllable and tone of a character, as numbers; zeros for one without."""
        return self._sound.get(character, (0, 0))

    def phonemes(self, text: str) -> str:
        """The phonemes of a sentence, as a recogniser writes them: the tone ends each syllable."""
        spelled = {number: spelling for spelling, number in self._spelled.items()}
        return " ".join(f"{spelled[s]}{t}" for s, t in map(self.sound, text) if s)

    def sounds(self, text: str, phonemes: str | None) -> list[tuple[int, int]]:
        """Syllable and tone of each character: as the recogniser heard them if its phonemes fit, else as usual."""
        usual = [self.sound(character) for character in text]
        if not phonemes or len(phonemes) > 32 * len(text):  # twice the longest spelling; more is not worth reading
            return usual
        heard = self._heard(phonemes)
        return heard if len(heard) == len(usual) else usual

    def _heard(self, phonemes: str) -> list[tuple[int, int]]:
        heard, syllable = [], ""
        for symbol in phonemes.split():
            bare, tone = (symbol[:-1], int(symbol[-1])) if symbol[-1] in "12345" else (symbol, 0)
            syllable = f"{syllable} {bare}" if syllable else bare
            if tone:
                heard.append((self._spelled.get(syllable, 0), tone))
                syllable = ""
        return heard


def _tone(pinyin: str) -> int:
    return int(pinyin[-1]) if pinyin[-1:] in tuple("2345") else 1


def align(first: str, other: str) -> tuple[list[str], list[str]]:
    """How `first` turns into `other`: what stands in place of each character, and what comes before each and the end.

    A character that was dropped has "" in its place.
    """
    if len(first) == len(other):
        differing = sum(a != b for a, b in zip(first, other, strict=True))
        if differing <= 1 + len(first) // 3:
            return list(other), [""] * (len(first) + 1)
    costs = [list(range(len(other) + 1))]
    for i, a in enumerate(first, 1):
        above, row = costs[-1], [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j - 1] + (a != b), above[j] + 1, row[-1] + 1))
        costs.append(row)
    places, between = [""] * len(first), [""] * (len(first) + 1)
    i, j = len(first), len(other)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (first[i - 1] != other[j - 1]):
            i, j = i - 1, j - 1
            places[i] = other[j]
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
            between[i] = other[j] + between[i]
    return places, between


def encode(alphabet: Alphabet, candidates: Sequence[str], phonemes: Sequence[str] = ()) -> Any:
    """A request's candidates as one table: a row for the start, then one per character of the first candidate.

    A candidate longer than LONGEST is left out, as if it said what the first does: aligning it would take seconds.
    """
    first = candidates[0]
    number = alphabet.number
    table = np.zeros((len(first) + 1, COLUMNS), np.int64)
    table[0, :CANDIDATES] = START
    table[1:, :CANDIDATES] = np.array([number.get(c, UNKNOWN) for c in first], np.int64)[:, None]
    for column, other in enumerate(candidates[1:CANDIDATES], 1):
        if len(other) > LONGEST:
            continue
        places, _ = align(first, other)
        table[1:, column] = [number.get(c, UNKNOWN) if c else NOTHING for c in places]
    sounds = alphabet.sounds(first, phonemes[0] if phonemes else None)
    table[1:, CANDIDATES:] = np.array(sounds, np.int64).reshape(-1, 2)
    return table
