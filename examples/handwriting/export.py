"""Turns trained weights into the ONNX files that are served: int8 where a network is rounded, probabilities out.

    python examples/handwriting/export.py --data DATA --weights OUT [--models FOLDER]

Ranges for int8 come from font glyphs of the training faces, spoilt like the training pictures or on drawn forms.
Where training stopped before its last phase, the float weights are rounded as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import onnx
    import torch
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from torch import Tensor, nn
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install 'timebound[torch,convert]'") from None

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.handwriting.data import read_glyphs
from examples.handwriting.folders import folder_with
from examples.handwriting.mill import prepared
from examples.handwriting.nets import MEMBERS, NAMED, load_member, shares_of, switch_rounding
from examples.handwriting.paper import bent, spoil, to_ink

MODELS = Path(__file__).resolve().parents[2] / "src" / "timebound" / "demo" / "models"
LOOKED_AT = 512
"""Pictures whose activations set the ranges of int8."""


class Shares(nn.Module):
    """A network whose scores are turned into shares of one for 801 answers, so that members can be averaged."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: Tensor) -> Tensor:
        return shares_of(self.net(pixels))


def write_float(name: str, weights: Path, path: Path) -> None:
    """A member as a float32 file; the number of pictures per call is free."""
    net = load_member(name, torch.load(weights, map_location="cpu"))
    switch_rounding(net, False)
    free = {"pixels": {0: "batch"}, "probabilities": {0: "batch"}}
    torch.onnx.export(
        Shares(net).eval(),
        (torch.rand(2, 1, 64, 64),),
        path,
        input_names=["pixels"],
        output_names=["probabilities"],
        dynamic_axes=free,
        opset_version=17,
        dynamo=False,
    )


class Pictures(CalibrationDataReader):
    """Hands pictures to the quantiser, a few at a time."""

    def __init__(self, pictures: Tensor) -> None:
        self._parts: Iterator[Tensor] = iter(pictures.split(32))

    def get_next(self) -> dict[str, Any] | None:
        part = next(self._parts, None)
        return None if part is None else {"pixels": part.numpy()}


def write_int8(source: Path, path: Path, pictures: Tensor) -> None:
    """Convolutions and matrix products in int8, weights per channel; views, squeezes and softmax stay in float."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        graph = onnx.load(ready).graph
        plain = [node.name for node in graph.node if _is_part(node, ("down", "up", "view"))]
        quantize_static(
            str(ready),
            str(path),
            Pictures(pictures),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm", "MatMul", "Add"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=plain,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.1},
        )


def halve_squeezes(path: Path) -> None:
    """The squeezes' weights, which stayed in float32, are stored in 16 bits and widened when read."""
    model = onnx.load(path)
    graph = model.graph
    squeezes = {name for node in graph.node if _is_part(node, ("down", "up")) for name in node.input}
    for table in [one for one in graph.initializer if one.name in squeezes]:
        name, values = table.name, onnx.numpy_helper.to_array(table)
        table.CopyFrom(onnx.numpy_helper.from_array(values.astype("float16"), f"{name}.half"))
        graph.node.insert(0, onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _is_part(node: Any, parts: tuple[str, ...]) -> bool:
    """Whether a node of the graph comes from a layer of one of these names."""
    return any(f"/{part}/" in node.name for part in parts)


def calibration(data: Path) -> Tensor:
    """Glyphs of known characters and of others, by turns spoilt like those in training and on forms."""
    torch.manual_seed(3)
    glyphs, _ = read_glyphs(data / "glyphs48.npz", torch.device("cpu"))
    clean = to_ink(glyphs.pick(torch.randint(0, NAMED, (LOOKED_AT,))))
    written = (bent(clean[1::2])[:, 0] * 255).to(torch.uint8).numpy()
    return torch.stack([spoil(clean[::2]), to_ink(torch.tensor(prepared(written, 3)))], 1).flatten(0, 1)


def main() -> None:
    """Every member, to its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder_with("glyphs48.npz"), required=True, help="folder with glyphs48.npz")
    parser.add_argument("--weights", type=Path, required=True, help="folder that train.py wrote to")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder for the ONNX files")
    parser.add_argument("--float", action="store_true", help="write float32 files of the weights before rounding")
    chosen = parser.parse_args()
    chosen.models.mkdir(parents=True, exist_ok=True)
    pictures = None if chosen.float else calibration(chosen.data)
    for name in MEMBERS:
        path = chosen.models / f"{name}.onnx"
        weights = chosen.weights / f"{name}.rounded.pt"
        if chosen.float or not weights.exists():
            weights = chosen.weights / f"{name}.float.pt"
        if not weights.is_file():
            parser.error(f"{weights} is not there; train.py --out {chosen.weights} writes it")
        if pictures is None:
            write_float(name, weights, path)
        else:
            with tempfile.TemporaryDirectory() as folder:
                plain = Path(folder) / "plain.onnx"
                write_float(name, weights, plain)
                write_int8(plain, path, pictures)
                halve_squeezes(path)
        print(f"wrote {path} ({path.stat().st_size:,} bytes) from {weights.name}")


if __name__ == "__main__":
    main()
