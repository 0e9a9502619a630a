"""What is to be converted: an ONNX file, a torch file, or a function in a Python file that makes a network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timebound.backends.base import Backend
from timebound.convert.reason import told
from timebound.errors import SetupError
from timebound.importer import import_file


def open_source(text: str, *, inputs: Sequence[str] | None = None, weights: Path | None = None) -> Backend:
    """The network that `text` names: "model.onnx", "model.pt2", "model.pt" or "net.py:make"."""
    file, function = check_exists(text)
    path = Path(file).resolve()
    if weights is not None and not function:
        raise SetupError("--weights fills a network that a function makes; give net.py:make")
    if path.suffix == ".onnx":
        from timebound.backends.onnx import onnx

        return onnx(path, threads=1)
    if path.suffix == ".py" and not function:
        raise SetupError(f"{file} needs the name of a function that makes the network, as in {file}:make")
    if not function and path.suffix not in (".pt", ".pt2"):
        raise SetupError(f"cannot convert {file}: give an .onnx, .pt2 or .pt file, or net.py:make")
    from timebound.backends.torch import torch  # imported here: converting ONNX files needs no torch

    if not function:
        return torch(path, inputs=inputs, threads=1)
    return torch(_function(path, function), inputs=inputs, weights=weights and weights.resolve(), threads=1)


def check_exists(text: str) -> tuple[str, str]:
    """The file that `text` names, and the function in it or ""; raises `SetupError` if there is no such file."""
    file, _, function = text.partition(":") if ".py:" in text else (text, "", "")
    if not Path(file).is_file():
        raise SetupError(f"{file} does not exist; give an .onnx, .pt2 or .pt file, or net.py:make")
    return file, function


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
