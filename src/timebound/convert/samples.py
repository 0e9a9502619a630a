"""Samples to check, calibrate and compare with: from an .npz file, a folder of arrays, or made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from timebound.backends.base import TensorSpec
from timebound.errors import SetupError

LABELS = "labels"
_MADE_UP = 16


class Samples(msgspec.Struct, frozen=True):
    """Arrays by input name, one row per item; labels if they are known."""

    arrays: Mapping[str, Any]
    labels: Any = None
    is_real: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batches(self, size: int) -> Iterator[dict[str, Any]]:
        """All items, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.take(start, size)

    def take(self, start: int, size: int) -> dict[str, Any]:
        """`size` items from `start` on, fewer at the end."""
        return {name: array[start : start + size] for name, array in self.arrays.items()}


def read_samples(path: Path) -> Samples:
    """Read an .npz with one array per input (and `labels`), or a folder of .npy or .npz files with one item each."""
    try:
        arrays = _read_folder(path) if path.is_dir() else _read_npz(path)
    except FileNotFoundError:
        raise SetupError(f"samples not found: {path}; give an .npz file or a folder of .npy files") from None
    except (ValueError, OSError) as error:
        # Not pickled objects either: numpy refuses those here.
        raise SetupError(f"{path} cannot be read as samples: {error}; save arrays with numpy.savez") from None
    labels = arrays.pop(LABELS, None)
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if labels is not None:
        counts[LABELS] = len(labels)
    if not arrays or len(set(counts.values())) != 1 or 0 in counts.values():
        raise SetupError(f"{path} must hold one array per input with equally many items each, and holds {counts}")
    return Samples(arrays, labels)


def named_as(samples: Samples, inputs: Sequence[TensorSpec]) -> Samples:
    """The samples under the network's own names: a single array may be called anything."""
    if len(inputs) == 1 and len(samples.arrays) == 1:
        (array,) = samples.arrays.values()
        return Samples({inputs[0].name: array}, samples.labels)
    missing = [spec.name for spec in inputs if spec.name not in samples.arrays]
    if missing:
        raise SetupError(f"the samples lack {', '.join(missing)}; they hold {', '.join(samples.arrays)}")
    return Samples({spec.name: samples.arrays[spec.name] for spec in inputs}, samples.labels)


def made_up(inputs: Sequence[TensorSpec], *, count: int = _MADE_UP, free: int = 8) -> Samples:
    """Random numbers that fit the inputs: between 0 and 1 for floats, small for whole numbers."""
    random = np.random.default_rng(0)
    arrays = {}
    for spec in inputs:
        shape = (count, *(free if size is None else size for size in spec.shape[1:]))
        dtype = np.dtype(spec.dtype)
        drawn = random.random(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
        arrays[spec.name] = drawn.astype(dtype)
    return Samples(arrays, is_real=False)


def specs_of(samples: Samples) -> list[TensorSpec]:
    """What a network takes, judging by samples of it."""
    return [TensorSpec(name, array.dtype.name, (None, *array.shape[1:])) for name, array in samples.arrays.items()]


def _read_npz(path: Path) -> dict[str, Any]:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {"input": loaded}
    return {name: loaded[name] for name in loaded.files}


def _read_folder(path: Path) -> dict[str, Any]:
    files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
    if not files:
        raise ValueError("it holds no .npy or .npz files")
    items = [_read_npz(file) for file in files]
    return {name: np.stack([item[name] for item in items]) for name in items[0]}
