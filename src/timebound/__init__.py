"""Timebound: the model server that is never late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timebound.errors import BadInput
from timebound.model import Image64, Model, Struct

if TYPE_CHECKING:
    from timebound import image, text
    from timebound.backends.ensemble import ensemble
    from timebound.backends.onnx import onnx
    from timebound.backends.python import python
    from timebound.backends.torch import torch

__version__ = "0.1.0"
__all__ = ["BadInput", "Image64", "Model", "Struct", "ensemble", "image", "onnx", "python", "text", "torch"]

# The gateway serves without numpy, onnxruntime and torch; only a worker that names them pays for their import.
_LATE = {
    "ensemble": ("timebound.backends.ensemble", "ensemble"),
    "image": ("timebound.image", None),
    "onnx": ("timebound.backends.onnx", "onnx"),
    "python": ("timebound.backends.python", "python"),
    "text": ("timebound.text", None),
    "torch": ("timebound.backends.torch", "torch"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'timebound' has no attribute {name!r}")
    module, attribute = _LATE[name]
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
