"""What is to be converted: a file of ONNX, torch or Keras, or a function in a Python file that makes a network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timebound.backends.base import Backend
from timebound.convert.reason import told
from timebound.errors import SetupError
from timebound.importer import import_file

KERAS = (".keras", ".h5", ".hdf5")
_TAKEN = "give an .onnx, .pt2, .pt, .keras or .h5 file, or net.py:make"
_BY_TF2ONNX = {".tflite": "--tflite", ".pb": "--graphdef"}
"""Files of TensorFlow, which another program converts, and its flag for each."""


def open_source(text: str, *, inputs: Sequence[str] | None = None, weights: Path | None = None) -> Backend:
    """The network that `text` names: "model.onnx", "model.pt2", "model.pt", "model.keras" or "net.py:make"."""
    file, function = check_exists(text)
    path = Path(file).resolve()
    if weights is not None and not function:
        raise SetupError("--weights fills a network that a function makes; give net.py:make")
    if path.suffix == ".onnx":
        from timebound.backends.onnx import onnx

        return onnx(path, threads=1)
    if path.suffix == ".py" and not function:
        raise SetupError(f"{file} needs the name of a function that makes the network, as in {file}:make")
    if not function and path.suffix.lower() in KERAS:
        from timebound.convert.keras_file import open_keras  # imported here: nothing else needs Keras

        return open_keras(path, inputs)
    from timebound.backends.torch import torch  # imported here: converting ONNX files needs no torch

    if not function:
        return torch(path, inputs=inputs, threads=1)
    return torch(_function(path, function), inputs=inputs, weights=weights and weights.resolve(), threads=1)


def check_exists(text: str) -> tuple[str, str]:
    """The file that `text` names, and the function in it or ""; raises `SetupError` if it cannot be converted."""
    file, _, function = text.partition(":") if ".py:" in text else (text, "", "")
    path = Path(file)
    if (path / "saved_model.pb").is_file():
        raise SetupError(_tensorflow(file, "--saved-model"))
    if not path.is_file():
        raise SetupError(f"{file} does not exist; {_TAKEN}")
    if path.suffix in _BY_TF2ONNX:
        raise SetupError(_tensorflow(file, _BY_TF2ONNX[path.suffix]))
    if not function and path.suffix.lower() not in (".onnx", ".py", ".pt", ".pt2", *KERAS):
        raise SetupError(f"cannot convert {file}: {_TAKEN}")
    return file, function


def _tensorflow(file: str, flag: str) -> str:
    more = " --inputs x:0 --outputs y:0" if flag == "--graphdef" else ""
    return (
        f"cannot convert {file}: files of TensorFlow are converted by tf2onnx. Do that first:\n\n"
        "    pip install tensorflow tf2onnx\n"
        f"    python -m tf2onnx.convert {flag} {file}{more} --output model.onnx\n\n"
        "then `timebound serve model.onnx`, or make it smaller: timebound convert model.onnx small.onnx --int8"
    )


def _function(path: Path, name: str) -> Any:
    from torch.nn import Module  # imported here for the reason above

    found = getattr(import_file(path), name, None)
    if not callable(found):
        raise SetupError(f"{path.name} has no function {name!r}; name one that returns a torch.nn.Module")
    return found if isinstance(found, Module) else _named(found, f"{path.name}:{name}")


def _named(make: Callable[[], Any], label: str) -> Callable[[], Any]:
    """The same function; if it fails, the sentence says which it was."""

    @functools.wraps(make, updated=())
    def call() -> Any:
        with told(f"{label} failed: %kind: %s; it is called without arguments and must return a torch.nn.Module"):
            return make()

    return call
