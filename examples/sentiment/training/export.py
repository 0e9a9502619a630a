"""Writes the rounded network as an ONNX file: 4 bits per weight in the file, 8 in memory, products in whole numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install onnx") from None

WIDTH, HEADS, LAYERS, CLASSES = 384, 12, 6, 3
EPSILON = 1e-12


class Graph:
    """Nodes and weights, written one line each."""

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self._nodes: list[Any] = []
        self._values: list[Any] = []

    def node(self, kind: str, inputs: str, output: str, **attributes: Any) -> str:
        """One of ONNX's own nodes; returns its (first) output's name."""
        self._nodes.append(helper.make_node(kind, inputs.split(), output.split(), **attributes))
        return output.split(maxsplit=1)[0]

    def fused(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """One of onnxruntime's nodes; an empty input is one that is left out."""
        self._nodes.append(helper.make_node(kind, inputs, [output], domain="com.microsoft", **attributes))
        return output

    def value(self, name: str, array: Any = None) -> str:
        """A constant: given, or a weight as it is."""
        array = self._weights[name].astype(np.float32) if array is None else array
        self._values.append(numpy_helper.from_array(array, name))
        return name

    def whole(self, name: str, turned: bool) -> str:
        """A rounded matrix in 4 bits; onnxruntime widens it to 8 once, when it loads the file."""
        codes = self._weights[name].T if turned else self._weights[name]
        flat = np.append(codes.flatten(), 0)[: codes.size + codes.size % 2].astype(np.uint8) & 15
        packed = (flat[0::2] | flat[1::2] << 4).tobytes()
        self._values.append(helper.make_tensor(name + "_4", TensorProto.INT4, codes.shape, packed, raw=True))
        return self.node("Cast", name + "_4", name, to=TensorProto.INT8)

    def product(self, inputs: str, name: str) -> str:
        """Inputs times a rounded matrix: inputs are rounded to 8 bits on the way."""
        step = self.value(name + "_step", self._weights[name + "_step"].flatten())
        return self.fused(
            "DynamicQuantizeMatMul",
            [inputs, self.whole(name, True), step, "", self.value(name + "_bias")],
            name + "_out",
        )

    def added(self, hidden: str, more: str, normal: str) -> str:
        """Sum of both, brought to mean zero and length one."""
        self.node("Add", f"{more} {hidden}", normal + "_sum")
        inputs = f"{normal}_sum {self.value(normal + '_scale')} {self.value(normal + '_shift')}"
        return self.node("LayerNormalization", inputs, normal, axis=-1, epsilon=EPSILON)

    def model(self) -> Any:
        """The whole file."""
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
        out = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])
        graph = helper.make_graph(self._nodes, "sentiment", [ids], [out], self._values)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="timebound-example")


def build(weights: Any) -> Any:
    """ids [batch, length], 0 for padding -> probabilities [batch, 3]."""
    graph = Graph(weights)
    node, value = graph.node, graph.value
    value("zero", np.array(0, np.int64))
    value("one", np.array([1], np.int64))
    value("start", np.array([0], np.int64))
    node("Equal", "ids zero", "is_padding")
    node("Not", "is_padding", "is_piece")
    node("Cast", "is_piece", "mask", to=TensorProto.INT32)

    graph.whole("pieces", False)
    value("pieces_step", weights["pieces_step"].astype(np.float32))
    node("Gather", "pieces ids", "rows")
    node("Cast", "rows", "rows_float", to=TensorProto.FLOAT)
    node("Gather", "pieces_step ids", "rows_step")
    node("Mul", "rows_float rows_step", "vectors")
    node("Shape", "ids", "length", start=1, end=2)
    node("Slice", f"{value('places')} start length start", "placed")
    node("Add", "vectors placed", "embedded")
    hidden = node(
        "LayerNormalization",
        f"embedded {value('first_scale')} {value('first_shift')}",
        "first",
        axis=-1,
        epsilon=EPSILON,
    )
    for layer in range(LAYERS):
        hidden = add_layer(graph, hidden, f"layer{layer}_")

    node("Cast", "mask", "mask_float", to=TensorProto.FLOAT)
    value("two", np.array([2], np.int64))
    node("Unsqueeze", "mask_float two", "mask_column")
    node("Mul", f"{hidden} mask_column", "kept")
    node("ReduceSum", "kept one", "sum", keepdims=0)
    node("ReduceSum", "mask_float one", "count", keepdims=1)
    node("Div", "sum count", "mean")
    node("Gemm", f"mean {value('head')} {value('head_bias')}", "logits", transB=1)
    node("Softmax", "logits", "probabilities", axis=1)
    return graph.model()


def add_layer(graph: Graph, hidden: str, name: str) -> str:
    """One layer: look at the other pieces, then think."""
    looked = graph.product(hidden, name + "look")
    parts = [name + part for part in ("query", "key", "value")]
    graph.node("Split", looked, " ".join(parts), axis=-1, num_outputs=3)
    seen = graph.fused("MultiHeadAttention", [*parts, "", "mask"], name + "seen", num_heads=HEADS)
    mixed = graph.product(seen, name + "mix")
    hidden = graph.added(hidden, mixed, name + "after_mix")
    graph.node("Gelu", graph.product(hidden, name + "widen"), name + "wide")
    narrow = graph.product(name + "wide", name + "narrow")
    return graph.added(hidden, narrow, name + "after_narrow")


def main() -> None:
    """Read, build, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="rounded.npz as train.py wrote it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "sentiment.onnx")
    options = parser.parse_args()
    if not options.weights.is_file():
        parser.error(f"{options.weights} is not there; train.py writes it")
    model = build(dict(np.load(options.weights)))
    onnx.save(model, options.out)
    print(f"{options.out.name}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
