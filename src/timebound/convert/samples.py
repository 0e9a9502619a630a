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
_MADE_UP, _FREE = 16, 8


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
    except _Unfit as error:
        raise SetupError(f"{path} cannot be read as samples: {error}; save arrays with numpy.savez") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read as samples: {error.strerror or error}") from None
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    labels = arrays.pop(LABELS, None)
    if not arrays or len(set(counts.values())) != 1 or 0 in counts.values():
        raise SetupError(f"{path} must hold one array per input with equally many items each, and holds {counts}")
    return Samples(arrays, labels)


def named_as(samples: Samples, inputs: Sequence[TensorSpec], path: Path) -> Samples:
    """The samples under the network's own names, if they fit it: a single array may be called anything."""
    names = {spec.name: spec.name for spec in inputs}
    if len(inputs) == 1 and len(samples.arrays) == 1:
        names = {inputs[0].name: next(iter(samples.arrays))}
    missing = [name for name in names.values() if name not in samples.arrays]
    if missing:
        raise SetupError(
            f"{path} holds {', '.join(samples.arrays)}, but the network takes {', '.join(names)}; "
            f"save its arrays under these names (and the right answers as {LABELS})"
        )
    for spec in inputs:
        _check_fit(path, names[spec.name], samples.arrays[names[spec.name]], spec)
    return Samples({own: samples.arrays[theirs] for own, theirs in names.items()}, samples.labels)


def whole_labels(labels: Any, classes: int) -> Any:
    """The labels as whole numbers, each the number of a class; raises `SetupError` naming what was found."""
    wanted = f"give one whole number from 0 to {classes - 1} per item, as the network has {classes} classes"
    if labels.dtype.kind not in "iubf":
        found = f"such as {labels.flat[0]!s:.40}" if labels.size else "that are no numbers"
        raise SetupError(f"the samples have labels {found} ({labels.dtype}); {wanted}")
    if labels.ndim != 1:
        raise SetupError(f"the samples have labels of shape {labels.shape}; {wanted} (of one-hot rows, their argmax)")
    wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if len(wrong):
        raise SetupError(f"the samples have the label {wrong[0]}; {wanted}")
    return labels


def made_up(inputs: Sequence[TensorSpec]) -> Samples:
    """Random numbers that fit the inputs: between 0 and 1 for floats, small for whole numbers."""
    random = np.random.default_rng(0)
    arrays = {}
    for spec in inputs:
        shape = (_MADE_UP, *(_FREE if size is None else size for size in spec.shape[1:]))
        dtype = np.dtype(spec.dtype)
        drawn = random.random(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
        arrays[spec.name] = drawn.astype(dtype)
    return Samples(arrays, is_real=False)


def specs_of(samples: Samples) -> list[TensorSpec]:
    """What a network takes, judging by samples of it."""
    return [TensorSpec(name, array.dtype.name, (None, *array.shape[1:])) for name, array in samples.arrays.items()]


def _check_fit(path: Path, name: str, array: Any, spec: TensorSpec) -> None:
    dtype = "str" if array.dtype.kind in "US" else array.dtype.name
    if not spec.fits(array.shape[1:]) or dtype != spec.dtype:
        found = TensorSpec(name, dtype, (None, *array.shape[1:]))
        raise SetupError(f"{path} holds {found}, but the network takes {spec}; save the samples as that")


class _Unfit(Exception):
    """Why a file holds no samples."""


def _read_npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:  # opened here: numpy leaves damaged archives open
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"input": loaded}
            arrays = {name: loaded[name] for name in loaded.files}
        except Exception:
            # Whatever numpy says: of files that are no arrays, it says to read them as pickles, which run code.
            raise _Unfit(f"{path.name} is damaged, no .npy or .npz file, or holds Python objects") from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise _Unfit(f"{path.name} holds other things than arrays")
    return arrays


def _read_folder(path: Path) -> dict[str, Any]:
    files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
    if not files:
        raise _Unfit("it holds no .npy or .npz files")
    items = [_read_npz(file) for file in files]
    shapes = [{name: array.shape for name, array in item.items()} for item in items]
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            raise _Unfit(f"{file.name} holds {shape}, but {files[0].name} {shapes[0]}")
    return {name: np.stack([item[name] for item in items]) for name in items[0]}
