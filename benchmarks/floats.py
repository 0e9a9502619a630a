"""The trained networks of `timebound demo` as float32 files: their int8 weights as numbers, rounding taken out.

They were trained, so what they answer does not hang on the last digits as it does with the random weights of
`models.py`: with them one can ask whether an engine of less precision still answers the same.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.workload import default_folder
from timebound.demo.app import FILES

DEMO = Path(__file__).resolve().parents[1] / "src/timebound/demo"


def folder_of(models: Path) -> Path:
    """Where the float32 files lie, in the folder of the benchmark's models."""
    return models / "handwriting"


def build(folder: Path) -> list[Path]:
    """Write the files, in the order of the demo's members."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / Path(file).name for file in FILES]
    for file, path in zip(FILES, paths, strict=True):
        onnx.save(to_float(onnx.load(DEMO / file)), path)
    return paths


def to_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network without QuantizeLinear and DequantizeLinear: constants as floats, activations unrounded."""
    constants = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    instead: dict[str, str] = {}
    made: list[onnx.TensorProto] = []
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
            made.append(numpy_helper.from_array(_dequantized(node, constants, axis), node.output[0]))
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            instead[node.output[0]] = instead.get(node.input[0], node.input[0])
        else:
            kept.append(node)
    for node in kept:
        for place, name in enumerate(node.input):
            node.input[place] = instead.get(name, name)
    for output in model.graph.output:  # an output that was rounded last is given by the node before
        if output.name in instead:
            node = next(node for node in kept if instead[output.name] in node.output)
            node.output[list(node.output).index(instead[output.name])] = output.name
    used = {name for node in kept for name in node.input}
    weights = [weight for weight in [*model.graph.initializer, *made] if weight.name in used]
    fresh = onnx.ModelProto()
    fresh.CopyFrom(model)
    del fresh.graph.node[:], fresh.graph.initializer[:], fresh.graph.value_info[:]
    fresh.graph.node.extend(kept)
    fresh.graph.initializer.extend(weights)
    onnx.checker.check_model(fresh)
    return fresh


def _dequantized(node: onnx.NodeProto, constants: dict[str, NDArray[np.generic]], axis: int) -> NDArray[np.float32]:
    values, scale = (np.asarray(constants[name], np.float64) for name in node.input[:2])
    zero = np.asarray(constants[node.input[2]], np.float64) if len(node.input) > 2 else np.zeros_like(scale)
    if scale.ndim and scale.size > 1:
        shape = [-1 if place == axis else 1 for place in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return ((values - zero) * scale).astype(np.float32).reshape(values.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = folder_of(default_folder())
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="default: %(default)s")
    for path in build(parser.parse_args().folder):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
