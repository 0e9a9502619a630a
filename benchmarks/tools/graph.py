"""An ONNX graph under construction: operators and constants are added one by one and named by themselves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 17


class Graph:
    """Each method adds something and returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add any operator."""
        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def weight(self, values: NDArray[Any]) -> str:
        """Add a constant of 32-bit floats."""
        return self._constant(values.astype(np.float32))

    def integers(self, *values: int) -> str:
        """Add a constant list of whole numbers, as shapes and axes are given."""
        return self._constant(np.array(values, dtype=np.int64))

    def _constant(self, values: NDArray[Any]) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def finished(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The checked model."""
        graph = helper.make_graph(self._nodes, "benchmark", list(inputs), list(outputs), self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        return model
