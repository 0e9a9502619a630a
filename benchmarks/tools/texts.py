"""The text work: short texts in, texts of the same length out, through a small transformer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

TEXT_MODEL_FILE = "transformer.onnx"
TEXTS_FILE = "texts.json"
SHORTEST, LONGEST = 5, 60
# Printable ASCII, without the two characters that JSON would escape.
ALPHABET = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"\\')

_ID_OF = {letter: number for number, letter in enumerate(ALPHABET)}


@dataclass(frozen=True)
class TextSample:
    """A text, and what the transformer makes of it."""

    text: str
    answer: str


def load_texts(folder: Path) -> list[TextSample]:
    """Read the texts that transformer.py wrote."""
    return [TextSample(**entry) for entry in json.loads((folder / TEXTS_FILE).read_text())]


def encode(text: str) -> Ids:
    """One number per letter; raises ValueError for a letter that is not in the alphabet, or a wrong length."""
    if not SHORTEST <= len(text) <= LONGEST:
        raise ValueError(f"text must have {SHORTEST} to {LONGEST} letters")
    try:
        return np.array([_ID_OF[letter] for letter in text], dtype=np.int64)
    except KeyError as error:
        raise ValueError(f"text must be printable ASCII, without {error.args[0]!r}") from None


def pad(rows: Sequence[Ids]) -> dict[str, NDArray[Any]]:
    """The transformer's inputs: all rows as long as the longest, and a mask that says what is real."""
    length = max(len(row) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.float32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"ids": ids, "mask": mask}


def read(row: Ids, length: int) -> str:
    """The letters of one output row, without its padding."""
    return "".join(map(ALPHABET.__getitem__, row[:length].tolist()))
