"""Files of Keras, opened as networks of torch: Keras computes with either, and no TensorFlow is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from timebound.backends.base import Backend
from timebound.backends.torch import torch
from timebound.convert.reason import library, told
from timebound.errors import SetupError

_MOST_INPUTS = 4


class _Network(nn.Module):
    """A model of Keras that takes its inputs one by one, as exporters want it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
        given = [each for each in (a, b, c, d) if each is not None]
        return self.model(given if len(given) > 1 else given[0], training=False)


def open_keras(path: Path, inputs: Sequence[str] | None) -> Backend:
    """The network of a .keras or .h5 file; what it takes is read from it, unless `inputs` say so."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"
    with library():
        import keras
    if keras.backend.backend() != "torch":
        raise SetupError(f"keras computes with {keras.backend.backend()} here; set KERAS_BACKEND=torch and try again")
    advice = (
        "a file of the Keras before 3 may need that version, with tf2onnx: "
        f"pip install tensorflow tf2onnx && python -m tf2onnx.convert --keras {path.name} --output model.onnx"
    )
    with told(f"keras cannot open {path.name}: %s; {advice}"), library():
        # In safe mode nothing that lies in the file is run, such as the code of Lambda layers.
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    if len(model.inputs) > _MOST_INPUTS:
        raise SetupError(f"{path.name} has {len(model.inputs)} inputs, and at most {_MOST_INPUTS} can be converted")
    return torch(_Network(model).eval(), inputs=inputs or [_spec(each) for each in model.inputs], threads=1)


def _spec(tensor: Any) -> str:
    """An input as `TensorSpec` is written."""
    sizes = ", ".join("any" if size is None else str(size) for size in tensor.shape)
    return f"{tensor.name}: {tensor.dtype}[{sizes}]"
