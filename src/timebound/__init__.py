"""Timebound: the model server that is never late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timebound.errors import BadInput, RequestError, SetupError
from timebound.model import Image64, Model, Struct

if TYPE_CHECKING:
    from timebound import image, text
    from timebound.backends.ensemble import ensemble
    from timebound.backends.onnx import onnx
    from timebound.backends.python import python
    from timebound.backends.torch import torch
    from timebound.gateway import Gateway

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "Gateway",
    "Image64",
    "Model",
    "RequestError",
    "SetupError",
    "Struct",
    "ensemble",
    "image",
    "onnx",
    "python",
    "text",
    "torch",
]

# Each is imported when it is named: the gateway serves without numpy, onnxruntime and torch, workers without a gateway.
_LATE = {
    "Gateway": ("timebound.gateway", "Gateway"),
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
