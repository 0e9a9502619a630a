"""Tiny ONNX files, one function per kind of signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]

FLOAT, INT64, UINT8, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.STRING
BFLOAT16 = TensorProto.BFLOAT16


def save(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
) -> Path:
    """Write a graph of (operator, inputs, outputs) nodes; returns `path`."""
    graph = helper.make_graph(
        [helper.make_node(operator, list(takes), list(gives)) for operator, takes, gives in nodes],
        "tiny",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def save_doubler(path: Path, *, batch: int | str = "n", width: int | str = 3) -> Path:
    """`y = x + x` over float32[batch, width]."""
    shape = (batch, width)
    return save(path, [("Add", ["x", "x"], ["y"])], {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)})


def save_sum_and_difference(path: Path, *, batch: int | str = "n") -> Path:
    """`sum = a + b`, `difference = a - b` over float32[batch, 2]."""
    spec = (FLOAT, (batch, 2))
    nodes = [("Add", ["a", "b"], ["sum"]), ("Sub", ["a", "b"], ["difference"])]
    return save(path, nodes, {"a": spec, "b": spec}, {"sum": spec, "difference": spec})


def save_echo(path: Path, kind: int, shape: Shape, *, name: str = "x") -> Path:
    """`y = x` for any kind of tensor."""
    return save(path, [("Identity", [name], ["y"])], {name: (kind, shape)}, {"y": (kind, shape)})


def save_with_weights_apart(path: Path) -> Path:
    """`y = x * 2` over float32[n, w], with the 2 in a file beside it."""
    two = numpy_helper.from_array(np.array([2.0], np.float32), "two")
    ends = [helper.make_tensor_value_info(name, FLOAT, ("n", "w")) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "tiny", ends[:1], ends[1:], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path
