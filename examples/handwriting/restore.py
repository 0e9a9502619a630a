"""Turns a served ONNX file back into a network that training can go on from.

The file has int8 weights with the batch norms folded into them. Folded, a norm neither normalises nor learns, so each
is unfolded again: it gets the mean and the spread that its layer's outputs have on given pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from examples.handwriting.nets import MEMBERS, Unit
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SIZE = 0.12
"""The root mean square of a layer's weights before its norm, which may have any: about where training leaves them."""


def restore(name: str, path: Path, pictures: Tensor) -> nn.Module:
    """The member in this file, with norms that fit these pictures [n, 1, 64, 64]."""
    net = MEMBERS[name]()
    found = _weights(path, net.state_dict())
    # A unit's norm is folded into its convolution, all but the bias; it is unfolded below.
    folded = {key.replace("conv.weight", "norm.weight") for key in found}
    lacking = [key for key, _ in net.named_parameters() if key not in found and key not in folded]
    if lacking:
        raise ValueError(f"{path} has no {', '.join(lacking[:3])}: it is no {name}, or was not written by export.py")
    net.load_state_dict({**net.state_dict(), **found})
    _unfold(net.to(pictures.device).eval(), pictures)
    return net.train()


def _weights(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the file has of this state."""
    graph = onnx.load(path).graph
    tables = _tables(graph)
    found = {}
    for node in graph.node:
        layer = node.name.removeprefix("/net/").rpartition("/")[0]
        if node.op_type not in ("Conv", "Gemm", "BatchNormalization") or layer == "view":
            continue
        values = [torch.tensor(tables[one]) for one in node.input[1:]]
        for key, value in zip(_keys(layer, state), values, strict=True):
            if state[key].shape != value.shape:
                raise ValueError(f"{path}: {key} has the shape {[*value.shape]}, not {[*state[key].shape]}")
            found[key] = value
    return found


def _tables(graph: Any) -> dict[str, Any]:
    """Every constant by the name under which a layer reads it, as float32."""
    known = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for node in graph.node:
        source = known.get(node.input[0]) if node.input else None
        if source is None:
            continue
        if node.op_type == "DequantizeLinear":
            scale, zero = known[node.input[1]], known[node.input[2]]
            shape = [-1, *[1] * (source.ndim - 1)] if scale.ndim else []
            known[node.output[0]] = (source.astype(np.float32) - zero.reshape(shape)) * scale.reshape(shape)
        elif node.op_type == "Cast":
            known[node.output[0]] = source
    return {name: value.astype(np.float32) for name, value in known.items()}


def _keys(layer: str, state: dict[str, Tensor]) -> list[str]:
    """What a layer of the graph is called in the network: `/features/features.0` there is `features.0` here."""
    parts: list[str] = []
    for part in layer.split("/"):
        parts = [*parts[:-1], part] if parts and part.startswith(parts[-1] + ".") else [*parts, part]
    place = ".".join(parts)
    if f"{place}.conv.weight" in state:
        return [f"{place}.conv.weight", f"{place}.norm.bias"]
    return [
        f"{place}.{what}" for what in ("weight", "bias", "running_mean", "running_var") if f"{place}.{what}" in state
    ]


def _unfold(net: nn.Module, pictures: Tensor) -> None:
    """Norms that leave what each layer puts out as it is, and that normalise it from here on."""
    units = [part for part in net.modules() if isinstance(part, Unit)]
    norms = [part for part in net.modules() if isinstance(part, _BatchNorm)]
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def look(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        seen[norm] = (values.mean(1), values.var(1))

    for unit in units:
        unit.norm.running_var.fill_(1 - unit.norm.eps)  # does nothing so but add what was folded in
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    with torch.no_grad():
        net(pictures)
        for hook in hooks:
            hook.remove()
        for norm in norms:
            _measured(norm, *seen[norm])
        for unit in units:
            size = unit.conv.weight.square().mean((1, 2, 3)).sqrt().clamp(min=1e-8) / SIZE
            unit.conv.weight.div_(size.view(-1, 1, 1, 1))
            unit.norm.running_mean.div_(size)
            unit.norm.running_var.div_(size.square())
            unit.norm.weight.copy_((unit.norm.running_var + unit.norm.eps).sqrt() * size)


def _measured(norm: Any, mean: Tensor, spread: Tensor) -> None:
    """The norm with this mean and spread, its weight and bias changed so that it does what it did before."""
    slope = norm.weight / (norm.running_var + norm.eps).sqrt()
    norm.bias.add_(slope * (mean - norm.running_mean))
    norm.weight.copy_(slope * (spread + norm.eps).sqrt())
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(spread)
