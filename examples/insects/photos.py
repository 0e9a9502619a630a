"""Photos as the network takes them: the same steps for training, evaluation and serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import timebound as tb

LABELS = ("ant", "bee")
_WHOLE, _SIDE = 256, 224


def read_photo(data: bytes) -> Any:
    """A photo's file to uint8 [224, 224, 3]: the middle of it, without its rim."""
    rim = (_WHOLE - _SIDE) // 2
    return tb.image.decode(data, size=(_WHOLE, _WHOLE), fit="crop")[rim:-rim, rim:-rim]


def read_folder(folder: Path) -> tuple[Any, Any]:
    """All photos of `folder`/ants and `folder`/bees, and their labels as numbers; hidden files are none."""
    photos, numbers = [], []
    for number, label in enumerate(LABELS):
        files = sorted((folder / f"{label}s").glob("[!.]*"))
        if not files:
            raise SystemExit(f"{folder}/{label}s has no photos; README.md says where they come from")
        photos += [_read_file(file) for file in files]
        numbers += [number] * len(files)
    return np.stack(photos), np.array(numbers)


def _read_file(file: Path) -> Any:
    try:
        return read_photo(file.read_bytes())
    except (tb.BadInput, OSError) as error:
        raise SystemExit(f"{file} is no photo: {error}; take it out of the folder") from None
