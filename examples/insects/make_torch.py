"""Write insects.pt (TorchScript) from the shipped insects.onnx: its eight-bit weights as floats, in net.py's network.

python examples/insects/make_torch.py     needs pip install 'timebound[torch,convert]', no data and no training
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

try:
    import onnx
    import torch
    from net import Conv, Insects, save_script
    from onnx import numpy_helper
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed: pip install 'timebound[torch,convert]'") from None

HERE = Path(__file__).parent


def read_weights(path: Path) -> list[tuple[Any, Any]]:
    """Weight and bias of each layer, in the order in which they run."""
    graph = onnx.load(path).graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    whole = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}

    def floats(name: str) -> torch.Tensor:
        number, scale, zero = (stored[given] for given in whole[name].input)
        shape = (-1,) + (1,) * (number.ndim - 1) if scale.ndim else ()  # one scale per channel, or one for all
        return torch.from_numpy((number - zero.reshape(shape).astype("float32")) * scale.reshape(shape))

    layers = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    return [(floats(node.input[1]), floats(node.input[2])) for node in layers]


def fill(net: Insects, weights: list[tuple[Any, Any]]) -> None:
    """Put them into the network; its batch norms, which are part of these weights already, change nothing any more."""
    *body, head = weights
    convolutions = [each for each in net.modules() if isinstance(each, Conv)]
    with torch.no_grad():
        for (weight, bias), (_, convolution, norm, _) in zip(body, convolutions, strict=True):
            convolution.weight.copy_(weight)
            norm.bias.copy_(bias)
            norm.running_var.fill_(1.0 - norm.eps)
        net.head.weight.copy_(head[0].reshape(net.head.weight.shape))
        net.head.bias.copy_(head[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "insects.pt", help="where to write (default: here)")
    chosen = parser.parse_args()
    net = Insects().eval()
    fill(net, read_weights(HERE / "insects.onnx"))
    save_script(net, chosen.out)
    print(f"{chosen.out} is written ({chosen.out.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
