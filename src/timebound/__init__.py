"""Timebound: the model server that is never late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timebound.version import VERSION

if TYPE_CHECKING:
    from timebound import image, testing, text
    from timebound.backends.ensemble import ensemble
    from timebound.backends.onnx import onnx
    from timebound.backends.python import python
    from timebound.backends.torch import torch
    from timebound.client.asynchronous import AsyncClient
    from timebound.client.blocking import Client
    from timebound.errors import BadInput, RequestError, SetupError
    from timebound.gateway import Gateway
    from timebound.guest import asgi
    from timebound.model import Image64, Meta, Model, Struct
    from timebound.program import serve, start
    from timebound.reply import Reply

__version__ = VERSION
__all__ = [
    "AsyncClient",
    "BadInput",
    "Client",
    "Gateway",
    "Image64",
    "Meta",
    "Model",
    "Reply",
    "RequestError",
    "SetupError",
    "Struct",
    "asgi",
    "ensemble",
    "image",
    "onnx",
    "python",
    "serve",
    "start",
    "testing",
    "text",
    "torch",
]

# Each is imported when it is named: the gateway serves without numpy, onnxruntime and torch, workers without a gateway,
# and the command is there to hear Ctrl-C before any of it.
_LATE = {
    "AsyncClient": ("timebound.client.asynchronous", "AsyncClient"),
    "BadInput": ("timebound.errors", "BadInput"),
    "Client": ("timebound.client.blocking", "Client"),
    "Image64": ("timebound.model", "Image64"),
    "Meta": ("timebound.model", "Meta"),
    "Model": ("timebound.model", "Model"),
    "Reply": ("timebound.reply", "Reply"),
    "RequestError": ("timebound.errors", "RequestError"),
    "SetupError": ("timebound.errors", "SetupError"),
    "Struct": ("timebound.model", "Struct"),
    "Gateway": ("timebound.gateway", "Gateway"),
    "asgi": ("timebound.guest", "asgi"),
    "ensemble": ("timebound.backends.ensemble", "ensemble"),
    "image": ("timebound.image", None),
    "onnx": ("timebound.backends.onnx", "onnx"),
    "python": ("timebound.backends.python", "python"),
    "serve": ("timebound.program", "serve"),
    "start": ("timebound.program", "start"),
    "testing": ("timebound.testing", None),
    "text": ("timebound.text", None),
    "torch": ("timebound.backends.torch", "torch"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'timebound' has no attribute {name!r}")
    module, attribute = _LATE[name]
    found = import_module(module)
    globals()[name] = found = getattr(found, attribute) if attribute else found
    return found
