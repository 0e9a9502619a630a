"""From torch to ONNX: one file, with the batch and every other free dimension left free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from timebound.backends.base import Backend
from timebound.backends.torch import TorchBackend
from timebound.convert.reason import library, told
from timebound.convert.samples import Samples
from timebound.errors import SetupError


def write_onnx(net: Backend, path: Path, samples: Samples) -> None:
    """Export a network of torch to `path`; raises `SetupError` with its own reason if it cannot be said in ONNX."""
    assert isinstance(net, TorchBackend)
    names = [spec.name for spec in net.inputs]
    # At least two items: exporters take a batch of one for a fixed size.
    arrays = samples.take(0, 2) if len(samples) > 1 else {n: a.repeat(2, 0) for n, a in samples.arrays.items()}
    example = tuple(torch.from_numpy(arrays[name].copy()) for name in names)
    outputs = _output_names(net(arrays if len(names) > 1 else arrays[names[0]]))
    with told(f"{net.label} cannot be exported to ONNX: %kind: %s"), library():
        how = _how(net, example, outputs)
        torch.onnx.export(net.program, f=str(path), input_names=names, output_names=outputs, **how)
        twice = _named_twice(path, outputs)
    if twice:
        raise SetupError(
            f"{net.label}: its output {twice[0]} has the name of an input or of a value inside; call it something else "
            "in what forward() returns"
        )


def _named_twice(path: Path, outputs: list[str]) -> list[str]:
    """Outputs whose name the exporter gave to something else too: no engine would read the file."""
    import onnx  # an extra, as the exporters' own needs are

    graph = onnx.load(path).graph
    values = [*graph.input, *graph.initializer]
    names = Counter([*(value.name for value in values), *(name for node in graph.node for name in node.output)])
    return [name for name in outputs if names[name] > 1]


def _how(net: TorchBackend, example: tuple[Any, ...], outputs: list[str]) -> dict[str, Any]:
    """What the exporter must know of this kind of network, so that sizes that are free stay free."""
    free = {spec.name: [place for place, size in enumerate(spec.shape) if size is None] for spec in net.inputs}
    if isinstance(net.program, torch.jit.ScriptModule):
        named = {
            name: {place: f"{name}_{place}" if place else "batch" for place in places} for name, places in free.items()
        }
        axes = {**named, **{name: {0: "batch"} for name in outputs}}
        # The older exporter: the newer one does not take scripts.
        return {"args": example, "dynamic_axes": axes, "dynamo": False, "opset_version": 17}
    one_file = {"external_data": False, "verbose": False}  # to carry about
    if isinstance(net.program, torch.export.ExportedProgram):  # it has its shapes already
        return {"args": (), **one_file}
    shapes = tuple(dict.fromkeys(places, torch.export.Dim.DYNAMIC) for places in free.values())
    return {"args": example, "dynamic_shapes": shapes, **one_file}


def _output_names(output: Any) -> list[str]:
    if isinstance(output, dict):
        return list(output)
    return [f"output_{place}" for place in range(len(output))] if isinstance(output, tuple) else ["output"]
