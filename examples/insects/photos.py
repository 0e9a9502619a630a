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
    """All photos of `folder`/ants and `folder`/bees, and their labels as numbers."""
    files = [(file, number) for number, label in enumerate(LABELS) for file in sorted((folder / f"{label}s").iterdir())]
    return np.stack([read_photo(file.read_bytes()) for file, _ in files]), np.array([number for _, number in files])
